"""Where locks do not hold, as on some NFS, two writers cost time, and never a wrong result."""

import errno
import fcntl
import multiprocessing
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from fedloom.common import files
from fedloom.common.errors import FedLoomError
from fedloom.common.locks import file_lock
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.federated import training_job
from fedloom.federated.round import train_round
from fedloom.hooks import manifest
from fedloom.planning.paths import CHECKPOINT

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def flock_fails(monkeypatch):
    """Return fail(number), which makes every lock of a file fail with this error."""

    def fail(number: int) -> None:
        def flock(file: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    return fail


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_and_used(tmp_path, flock_fails, number):
    flock_fails(number)
    told = []
    with file_lock(tmp_path / ".lock", "waiting", told.append):
        (line,) = told
        assert line.startswith(f"{tmp_path}/.lock: there are no locks on this file system (")
    with file_lock(tmp_path / ".lock", "waiting", told.append):
        assert "waiting" not in told, "nothing is left that the next one would wait for"


def test_another_error_of_a_lock_is_an_error(tmp_path, flock_fails):
    flock_fails(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), file_lock(tmp_path / "x", "", print):
        pass


def write_often(path: Path, value: int, enough) -> None:
    while not enough.is_set():
        files.write_table(path, pa.table({"x": [value] * 1000}))


def test_a_file_that_two_write_at_once_is_always_that_of_one(tmp_path):
    path = tmp_path / "x.parquet"
    enough = FORK.Event()
    files.write_table(path, pa.table({"x": [0] * 1000}))
    writers = [FORK.Process(target=write_often, args=(path, value, enough)) for value in (1, 2)]
    for writer in writers:
        writer.start()
    seen = []
    try:
        while len(seen) < 200 or not {1, 2} <= set(seen):
            (value,) = set(files.read_table(path)["x"].to_pylist())
            seen.append(value)
    finally:
        enough.set()
        for writer in writers:
            writer.join()
    assert [file.name for file in tmp_path.iterdir()] == ["x.parquet"]


@pytest.fixture
def train(tiny, tmp_path, monkeypatch):
    """Return make(folder, at, meanwhile, dies), which trains four rounds and returns the files.

    Before round `at` it calls `meanwhile`; before round `dies` it is interrupted.
    """
    task, hooks = tiny("head_tuning")
    job = replace(tiny_job(manifest.find_method("head_tuning"), last=4), evaluated_rounds=(4,))

    def make(folder: str, at: int = 0, meanwhile=None, dies: int = 0) -> training_job.Outputs:
        def watched(task, *rest):
            if task.round == at:
                meanwhile()
            if task.round == dies:
                raise KeyboardInterrupt
            return train_round(task, *rest)

        outputs = tiny_outputs(tmp_path / folder)
        outputs.state.parent.mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(training_job, "train_round", watched)
            training_job.train_rounds(task, hooks, job, None, outputs, "same")
        return outputs

    return make


def assert_same(first: training_job.Outputs, second: training_job.Outputs) -> None:
    for kind in ("state", "evaluation", "clients"):
        assert getattr(first, kind).read_bytes() == getattr(second, kind).read_bytes()


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_job_that_another_overtakes_writes_the_same_bytes(train, at):
    """A second job of the same rounds begins in the midst of a round, and ends first."""
    assert_same(train("straight"), train("shared", at, lambda: train("shared")))


@pytest.mark.parametrize("at", [2, 3])
def test_a_checkpoint_that_two_jobs_wrote_is_resumed_rightly_or_refused(train, tmp_path, at):
    """A second job and then the first die after round 3, and a third job resumes."""

    def second():
        with pytest.raises(KeyboardInterrupt):
            train("shared", dies=4)

    with pytest.raises(KeyboardInterrupt):
        train("shared", at, second, dies=4)
    try:
        shared = train("shared")
    except FedLoomError as refusal:
        assert re.search(r"checkpoint.*delete it and run again", str(refusal))
        shutil.rmtree(tmp_path / "shared" / Path(CHECKPOINT).stem)
        shared = train("shared")
    assert_same(train("straight"), shared)
