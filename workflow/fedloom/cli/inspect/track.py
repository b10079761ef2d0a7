"""`fedloom track`: report a study's runs to a tracker, from files that jobs write anyway.

A tracker is a function that returns a context. Its arguments are a folder for its files, the
study's name, the run's path, and the run's settings. The context does three things:

1. At its beginning, it begins the run anew.
2. It yields a function that writes the values of a round.
3. At its end, it ends the run.

Installed packages may bring further trackers (see TRACKER_ENTRY_POINTS).
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from math import isfinite
from pathlib import Path

import pyarrow as pa
from safetensors import safe_open

from fedloom.cli.run.launch import plan_of_arguments
from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.files import read_table
from fedloom.common.receipts import digest, receipt_path
from fedloom.config.protocols import job_ends
from fedloom.machine.extras import require_extra
from fedloom.planning import paths, provenance, run_progress
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.planning.runs import trial_runs
from fedloom.report import metrics
from fedloom.report.run_settings import run_settings

# seconds between two looks at the files
TRACK_SECONDS = 2.0
TRACKED_TABLES = ("rounds", "evaluation")
# the group of the entry points by which packages bring trackers
TRACKER_ENTRY_POINTS = "fedloom.trackers"
# FedLoom's own trackers, which are named as the modules of their clients
OWN_TRACKERS = ("mlflow", "tensorboard", "wandb")

TrackedSettings = dict[str, bool | int | float | str]
Log = Callable[[int, dict[str, float]], object]
Tracker = Callable[[Path, str, str, TrackedSettings], AbstractContextManager[Log]]


def track_study(name: str) -> None:
    """Report all rounds of the study that was begun last in this folder, until the study ends."""
    tracker: Tracker = find_tracker(name).load()
    first_event = run_progress.last_begun()
    plan, _ = plan_of_arguments(first_event["arguments"])
    folder = paths.path_for(paths.TRACKED, tracker=name)
    folder.mkdir(parents=True, exist_ok=True)

    begin = partial(tracker, folder, plan.name)
    runs = [*plan.runs, *trial_runs(plan.settings)]
    followed = [FollowedRun(plan, run, begin, first_event["time"]) for run in runs]

    # look again and again, and once more after the end
    has_ended = False
    while not has_ended:
        # ask this before the last look, so that no round is missed
        has_ended = run_progress.has_ended(first_event)
        for each in followed:
            each.read_new_rounds()
        if not has_ended:
            time.sleep(TRACK_SECONDS)

    for each in followed:
        each.context.close()
    told = [each for each in followed if each.told]
    print(f"{len(told)} runs in {folder}")


@dataclass
class FollowedRun:
    """A run, and its rounds that were reported to a tracker."""

    plan: Plan
    run: Run
    # begins a run at the tracker; the tracker's folder and the study are already filled in
    begin: Callable[[str, TrackedSettings], AbstractContextManager[Log]]
    # when the study was begun, in seconds since 1970; an older checkpoint may have other settings
    since: float
    # the tracker's context, which is closed when all rounds are reported
    context: ExitStack = field(default_factory=ExitStack)
    # the tracker's function for the values of a round; None before the first round
    log: Log | None = None
    # the reported values by round, and the files from which they were read, with their times
    told: dict[int, dict[str, float]] = field(default_factory=dict)
    files: dict[Path, float] = field(default_factory=dict)

    def read_new_rounds(self) -> None:
        """Report the new rounds; if the run is trained anew, report all of its rounds again."""
        files = self.files
        rounds = dict[int, dict[str, float]]()
        try:
            files = self._files()
            if files != self.files:
                rounds = self._rounds(files)
        except (FedLoomError, FileNotFoundError):
            # a job may have replaced the files just now; the next look reads them
            if files == self._files():
                raise
            return
        self.files = files

        # if values have changed, the run is trained anew: report it from its first round
        if any(
            rounds.get(round_number, values) != values for round_number, values in self.told.items()
        ):
            self.context.close()
            self.log = None
            self.told = {}

        for round_number in sorted(rounds.keys() - self.told.keys()):
            if self.log is None:
                self.log = self.context.enter_context(self.begin(self.run.path, self._settings()))
            self.log(round_number, rounds[round_number])
            self.told[round_number] = rounds[round_number]

        if self.plan.study(self.run).rounds in self.told:
            self.context.close()

    def _files(self) -> dict[Path, float]:
        """Return the job's checkpoint and the receipts of finished jobs, with their times."""
        ends = map(paths.four_digits, job_ends(self.plan.study(self.run)))
        states = [paths.path_for(paths.STATE, self.run, end=end) for end in ends]
        checkpoint = states[0].with_name(paths.CHECKPOINT)

        times = dict[Path, float]()
        for file in (checkpoint, *map(receipt_path, states)):
            if file.exists():
                times[file] = file.stat().st_mtime

        # a checkpoint that is older than the study's start may have other settings
        if times.get(checkpoint, self.since) <= self.since:
            times.pop(checkpoint, None)
        return times

    def _rounds(self, files: dict[Path, float]) -> dict[int, dict[str, float]]:
        """Return the columns of rounds.parquet, and accuracies in percent, by round."""
        # a run whose options are still to be chosen has no settings yet
        found = dict[int, dict[str, float]]()
        if not all(Path(file).exists() for file in self.plan.choice_file(self.run)):
            return found

        # read the checkpoint, and the tables of jobs with these settings
        settings = provenance.digest_of_settings(self.plan.run_spec(self.run))
        for file in files:
            if file.name == paths.CHECKPOINT:
                rounds, evaluation = (_read_checkpoint(file, name) for name in TRACKED_TABLES)
            elif provenance.facts_of_job(self.run, int(file.stem))["settings"] == settings:
                rounds, evaluation = (
                    self._read_job_table(file.stem, name) for name in TRACKED_TABLES
                )
            else:
                continue

            # a round that was not evaluated has no accuracies
            clients = metrics.personal(evaluation.to_pandas())
            accuracies = metrics.curves(clients).add_prefix("accuracy/")
            rows = rounds.to_pandas().set_index("round").join(accuracies).to_dict("index")
            for round_number, values in rows.items():
                finite = {name: value for name, value in values.items() if isfinite(value)}
                found[round_number] = finite
        return found

    def _read_job_table(self, end: str, table: str) -> pa.Table:
        """Read a table of the job that ended with the round `end`."""
        file = paths.path_for(paths.JOB_TABLES[table], self.run, end=end)
        return read_table(file, metrics.columns_of(file))

    def _settings(self) -> TrackedSettings:
        """Return the run's labels and settings; a value that is not a number becomes text."""
        found = dict(vars(self.run))
        for key, setting in run_settings(self.plan, self.run):
            found[key] = setting.value

        plain: TrackedSettings = {}
        for key, value in found.items():
            if isinstance(value, bool | int | float):
                plain[key] = value
            else:
                plain[key] = str(value)
        return plain


def _read_checkpoint(head: Path, table: str) -> pa.Table:
    """Read rows as fedloom.federated.checkpoint does, but without torch, which takes 0.5 GB."""
    # the head names the parts, which hold the rows
    with safe_open(head, "numpy") as file:
        parts = json.loads(file.metadata()["fedloom"])["facts"]["parts"]

    tables = []
    for part in parts:
        with safe_open(head.with_suffix("") / f"{part}{head.suffix}", "numpy") as file:
            tables.append(pa.ipc.open_stream(file.get_tensor(f"rows/{table}")).read_all())
    return pa.concat_tables(tables, promote_options="default")


def find_tracker(name: str) -> EntryPoint:
    """Return the entry point from which a tracker is loaded.

    Raises:
        FedLoomError: the name is unknown, or the tracker's package is not installed.
    """
    known = {entry.name: entry for entry in entry_points(group=TRACKER_ENTRY_POINTS)}
    for own in OWN_TRACKERS:
        known[own] = EntryPoint(own, f"{__name__}:{own}", TRACKER_ENTRY_POINTS)
    check_known(name, known, "no tracker")
    require_extra(name)
    return known[name]


@contextmanager
def tensorboard(folder: Path, study: str, run: str, settings: TrackedSettings) -> Iterator[Log]:
    """Write a folder of events, <study>/<run>, with the settings as hyperparameters."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    # begin anew, without the events of an earlier attempt
    shutil.rmtree(folder / study / run, ignore_errors=True)
    writer = EventFileWriter(str(folder / study / run))

    def write(round_number: int, content: Summary) -> None:
        writer.add_event(Event(wall_time=time.time(), step=round_number, summary=content))
        writer.flush()

    def log(round_number: int, values: dict[str, float]) -> None:
        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        write(round_number, Summary(value=points))

    # write the settings before the first round
    write(0, hparams_pb(settings))
    yield log
    writer.close()


@contextmanager
def wandb(folder: Path, study: str, run: str, settings: TrackedSettings) -> Iterator[Log]:
    """Write a run of the project <study>, offline unless WANDB_MODE says otherwise."""
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    # wandb replaces an earlier run with this id, so the files of that run are not needed
    key = digest([study, run])[:16]
    for before in folder.glob(f"wandb/offline-run-*-{key}"):
        shutil.rmtree(before)

    # several runs are followed at once, so a new one must not end the others
    client = wandb.init(
        **{"project": study, "name": run, "id": key, "config": settings, "dir": folder},
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )
    yield lambda round_number, values: client.log(values, step=round_number, commit=True)
    client.finish()


@contextmanager
def mlflow(folder: Path, study: str, run: str, settings: TrackedSettings) -> Iterator[Log]:
    """Write a run of the experiment <study> to a SQLite file, or to MLFLOW_TRACKING_URI."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    file = f"sqlite:///{folder.absolute()}/mlflow.db"
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", file))

    # take the study's experiment, or make it if no other run has
    there = client.get_experiment_by_name(study)
    if there:
        experiment = there.experiment_id
    else:
        experiment = client.create_experiment(study)

    # begin the run anew, with its settings
    for before in client.search_runs([experiment], f"attributes.run_name = '{run}'"):
        client.delete_run(before.info.run_id)
    key = client.create_run(experiment, run_name=run).info.run_id
    for name, value in settings.items():
        client.log_param(key, name, value)

    def log(round_number: int, values: dict[str, float]) -> None:
        now = int(1000 * time.time())
        client.log_batch(
            key, [Metric(name, value, now, round_number) for name, value in values.items()]
        )

    yield log
    client.set_terminated(key)
