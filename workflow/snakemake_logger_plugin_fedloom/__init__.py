"""Snakemake's logger `fedloom`, for `fedloom run`: it writes events and prints errors."""

import json
import logging
import sys
from typing import Any

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase

from fedloom.planning.run_progress import EVENTS, UP_TO_DATE

# the events that fedloom.planning.run_progress takes, and what it reads of them
FIELDS = {
    "run_info": ("stats",),
    "job_info": ("jobid", "rule_name", "wildcards", "output", "log"),
    "job_finished": ("job_id",),
    "job_error": ("jobid",),
    UP_TO_DATE: (),
}
# the beginning of a failed job's shell command; the run's last lines have the job's own error
COMMAND_FAILED = "RuleException:\nCalledProcessError"


class LogHandler(LogHandlerBase):
    """Appends Snakemake's events to EVENTS as JSON lines, and prints warnings and errors."""

    writes_to_stream: Any = True  # in place of Snakemake's own lines
    writes_to_file: Any = False
    has_filter: Any = True  # every record comes here
    has_formatter: Any = False
    needs_rulegraph: Any = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write an event, or print a message."""
        event = str(getattr(record, "event", "") or "")
        # for this, Snakemake has a message in place of an event
        if record.getMessage() == NOTHING_TO_BE_DONE_MSG:
            event = UP_TO_DATE

        if event in FIELDS:
            values = {name: getattr(record, name, None) for name in FIELDS[event]}
            line = json.dumps({"event": event, "time": record.created, **values}, default=_plain)
            with EVENTS.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        elif record.levelno >= logging.WARNING:
            text = self.format(record)
            if not text.startswith(COMMAND_FAILED):
                print(text, file=sys.stderr, flush=True)


def _plain(value: Any) -> Any:
    """Return a container of Snakemake's as a dictionary or a list."""
    return dict(value) if hasattr(value, "keys") else list(map(str, value))
