"""Run one job of a rule: `python -m fedloom.jobs <rule> --job JSON`, the command of every rule."""

import argparse
import logging
import resource
import time
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

from fedloom.machine.exits import one_line_errors
from fedloom.machine.gpus import peak_gpu_megabytes
from fedloom.machine.job_events import with_event
from fedloom.machine.process_log import log_to
from fedloom.planning import job_receipts, staleness
from fedloom.planning.job_specs import from_json
from fedloom.planning.rules import RULES

log = logging.getLogger("fedloom")

MODULE = "fedloom.jobs.{rule}_job"


def main() -> None:
    """Run the job that the process's arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m fedloom.jobs", description=__doc__)
    parser.add_argument("rule", choices=sorted(RULES))
    parser.add_argument(
        "--job", required=True, help="the job as canonical JSON, as the rule sends it"
    )
    parser.add_argument(
        "--sources", help="digest of the source files of the job; default: of the files now"
    )
    parser.add_argument("--log", type=Path, help="also write the log to this file")
    parser.add_argument(
        "--memory", help="MB that the job asked for, for the message if it is killed"
    )
    parser.add_argument("--threads", type=int, default=1, help="number of torch's threads")
    args = parser.parse_args()

    with one_line_errors():
        log_to(args.log)
        module = import_module(MODULE.format(rule=args.rule))
        job = from_json(args.job, get_type_hints(module.run_job)["job"])
        sources = args.sources or staleness.sources_digest(*RULES[args.rule].code(job))

        # the old receipt is removed before the job, so what a killed job leaves has no receipt
        began = time.perf_counter()
        started_job = job_receipts.begin_job(args.rule, job, sources)
        module.run_job(job, args.threads)
        job_receipts.end_job(started_job)

        # log what the job took, for people and for the report
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_SELF)
        processor = used.ru_utime + used.ru_stime
        megabytes = used.ru_maxrss / 1024
        log.debug(
            "took %.1f s (%.1f s of processor time), and %.0f MB of memory at most",
            seconds,
            processor,
            megabytes,
            **with_event(
                "took",
                seconds=seconds,
                processor=processor,
                megabytes=megabytes,
                gpu_megabytes=peak_gpu_megabytes(),
            ),
        )


if __name__ == "__main__":
    main()
