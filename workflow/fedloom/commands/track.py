"""`fedloom track`: tell a tracker of a study's runs, from files that their jobs write anyway."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path

import pyarrow as pa
from safetensors import safe_open

from fedloom.commands import course
from fedloom.commands.launch import study_of
from fedloom.commands.trackers import Log, Settings, Tracker
from fedloom.common.errors import FedLoomError
from fedloom.common.io import read_table
from fedloom.common.receipts import receipt_of
from fedloom.config.rounds import job_ends
from fedloom.report import metrics
from fedloom.report.run_settings import settings_of
from fedloom.study import paths, provenance
from fedloom.study.plan import Plan
from fedloom.study.runs import Run, trial_runs

POLL = 2.0  # seconds between two looks at the files
TABLES = ("rounds", "evaluation")


def track(name: str, tracker: Tracker) -> None:
    """Tell a tracker of all rounds of the study that was begun last here, until it ends."""
    first = course.last_begun()
    plan, _ = study_of(first["arguments"])
    folder = paths.at(paths.TRACKED, tracker=name)
    folder.mkdir(parents=True, exist_ok=True)
    begin = partial(tracker, folder, plan.name)
    runs = [*plan.runs, *trial_runs(plan.settings)]
    every = [Followed(plan, run, begin, first["time"]) for run in runs]
    over = False
    while not over:
        over = course.ended(first)  # before the last look, so that nothing is lost
        for each in every:
            each.look()
        if not over:
            time.sleep(POLL)
    for each in every:
        each.context.close()
    print(f"{sum(bool(each.told) for each in every)} runs in {folder}")


@dataclass
class Followed:
    """A run, and what a tracker was told of it."""

    plan: Plan
    run: Run
    begin: Callable[[str, Settings], AbstractContextManager[Log]]
    since: float  # when the study was begun; an older checkpoint may be of other settings
    context: ExitStack = field(default_factory=ExitStack)  # the tracker's, closed when all is told
    log: Log | None = None
    told: dict[int, dict[str, float]] = field(default_factory=dict)  # values by round
    files: dict[Path, float] = field(default_factory=dict)  # that these are from

    def look(self) -> None:
        """Tell of the rounds that are new, or of all of them where the run is trained anew."""
        files = self.files
        try:
            files = self._files()
            rounds = self._rounds(files) if files != self.files else {}
        except (FedLoomError, FileNotFoundError):
            if files == self._files():
                raise
            return  # a job replaced them just now
        self.files = files
        if any(rounds.get(number, values) != values for number, values in self.told.items()):
            self.context.close()
            self.log, self.told = None, {}
        for number in sorted(rounds.keys() - self.told.keys()):
            if self.log is None:
                self.log = self.context.enter_context(self.begin(self.run.path, self._settings()))
            self.log(number, rounds[number])
            self.told[number] = rounds[number]
        if self.plan.study(self.run).rounds in self.told:
            self.context.close()

    def _files(self) -> dict[Path, float]:
        """Return the job's checkpoint and the receipts of finished jobs, with their times."""
        ends = map(paths.end, job_ends(self.plan.study(self.run)))
        states = [paths.at(paths.STATE, self.run, end=end) for end in ends]
        head = states[0].with_name(paths.CHECKPOINT)
        times = {f: f.stat().st_mtime for f in (head, *map(receipt_of, states)) if f.exists()}
        return {f: time for f, time in times.items() if f != head or time > self.since}

    def _rounds(self, files: dict[Path, float]) -> dict[int, dict[str, float]]:
        """Return the columns of rounds.parquet, and accuracies in percent, by round."""
        found = dict[int, dict[str, float]]()
        if not all(Path(file).exists() for file in self.plan.choice(self.run)):
            return found
        settings = provenance.digest_of_settings(self.plan.run_spec(self.run))
        for file in files:
            if file.name == paths.CHECKPOINT:
                tables = [_of_checkpoint(file, name) for name in TABLES]
            elif provenance.facts_of_job(self.run, int(file.stem))["settings"] == settings:
                names = [paths.at(paths.JOB_TABLES[n], self.run, end=file.stem) for n in TABLES]
                tables = [read_table(name) for name in names]
            else:  # of other settings
                continue
            rounds, evaluation = (table.to_pandas() for table in tables)
            accuracies = metrics.curves(metrics.personal(evaluation)).add_prefix("accuracy/")
            rows = rounds.set_index("round").join(accuracies).to_dict("index")
            for number, values in rows.items():
                found[number] = {name: n for name, n in values.items() if isfinite(n)}
        return found

    def _settings(self) -> Settings:
        """Return labels and settings; what is neither number nor text becomes text."""
        found = vars(self.run) | {key: s.value for key, s in settings_of(self.plan, self.run)}
        plain = (bool, int, float, str)
        return {key: v if isinstance(v, plain) else str(v) for key, v in found.items()}


def _of_checkpoint(head: Path, table: str) -> pa.Table:
    """Read rows as fedloom.federated.checkpoint does, but without torch, which takes 0.5 GB."""
    with safe_open(head, "numpy") as file:
        parts = json.loads(file.metadata()["fedloom"])["facts"]["parts"]
    tables = []
    for part in parts:
        with safe_open(head.with_suffix("") / f"{part}{head.suffix}", "numpy") as file:
            tables.append(pa.ipc.open_stream(file.get_tensor(f"rows/{table}")).read_all())
    return pa.concat_tables(tables, promote_options="default")
