"""Trackers, which show runs, each by its own client; installed packages may bring others.

A tracker is a function that returns a context. It begins a run anew, hands out a function that
writes the values of a round, and ends the run. Its arguments are a folder for its files, the
study's name, the run's path, and the run's settings.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from fedloom.common.errors import check_known
from fedloom.common.extras import require
from fedloom.common.receipts import digest

GROUP = "fedloom.trackers"  # of entry points
OWN = ("mlflow", "tensorboard", "wandb")  # the names of their clients too

Settings = dict[str, bool | int | float | str]
Log = Callable[[int, dict[str, float]], object]
Tracker = Callable[[Path, str, str, Settings], AbstractContextManager[Log]]


def find(name: str) -> EntryPoint:
    """Return where a tracker is loaded from; its name must be known and its client installed."""
    own = [EntryPoint(own, f"{__name__}:{own}", GROUP) for own in OWN]
    known = {entry.name: entry for entry in (*entry_points(group=GROUP), *own)}
    check_known(name, known, "no tracker")
    require(name)
    return known[name]


@contextmanager
def tensorboard(folder: Path, study: str, run: str, settings: Settings) -> Iterator[Log]:
    """Write a folder of events, <study>/<run>, with the settings as hyperparameters."""
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    shutil.rmtree(folder / study / run, ignore_errors=True)
    writer = EventFileWriter(str(folder / study / run))

    def log(number: int, values: dict[str, float]) -> None:
        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        content = Summary(value=points) if number else hparams_pb(settings)
        writer.add_event(Event(wall_time=time.time(), step=number, summary=content))
        writer.flush()

    log(0, {})
    yield log
    writer.close()


@contextmanager
def wandb(folder: Path, study: str, run: str, settings: Settings) -> Iterator[Log]:
    """Write a run of the project <study>, offline unless WANDB_MODE says otherwise."""
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    key = digest([study, run])[:16]  # the client replaces an earlier run of this id
    for before in folder.glob(f"wandb/offline-run-*-{key}"):
        shutil.rmtree(before)
    client = wandb.init(
        **{"project": study, "name": run, "id": key, "config": settings, "dir": folder},
        reinit="create_new",  # beside other runs
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )
    yield lambda number, values: client.log(values, step=number, commit=True)
    client.finish()


@contextmanager
def mlflow(folder: Path, study: str, run: str, settings: Settings) -> Iterator[Log]:
    """Write a run of the experiment <study> to a SQLite file, or to MLFLOW_TRACKING_URI."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    file = f"sqlite:///{folder.absolute()}/mlflow.db"
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", file))
    there = client.get_experiment_by_name(study)
    experiment = there.experiment_id if there else client.create_experiment(study)
    for before in client.search_runs([experiment], f"attributes.run_name = '{run}'"):
        client.delete_run(before.info.run_id)
    key = client.create_run(experiment, run_name=run).info.run_id
    for name, value in settings.items():
        client.log_param(key, name, value)

    def log(number: int, values: dict[str, float]) -> None:
        now = int(1000 * time.time())
        client.log_batch(key, [Metric(name, value, now, number) for name, value in values.items()])

    yield log
    client.set_terminated(key)
