"""Where locks do not hold, as on some NFS, two writers cost time, and never a wrong result."""

import errno
import fcntl
import itertools
import multiprocessing
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from fedloom.common import io
from fedloom.common.errors import FedLoomError
from fedloom.common.locks import held
from fedloom.common.receipts import write_receipt
from fedloom.contract import tiny_job, tiny_outputs
from fedloom.federated import training_job
from fedloom.federated.round import train_round
from fedloom.hooks import manifest
from fedloom.stages import evaluate
from fedloom.study import paths
from fedloom.study.jobs import EvaluateJob

TABLES = ("evaluation", "rounds", "clients")
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def flock_fails(monkeypatch):
    """flock_fails(number): every lock of a file fails with this error."""

    def fail(number: int) -> None:
        def flock(file: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    return fail


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_and_used(tmp_path, flock_fails, number):
    flock_fails(number)
    told = []
    with held(tmp_path / ".lock", "waiting", told.append):
        (line,) = told
        assert line.startswith(f"{tmp_path}/.lock: there are no locks on this file system (")
    with held(tmp_path / ".lock", "waiting", told.append):
        assert "waiting" not in told, "nothing is left that the next one would wait for"


def test_another_error_of_a_lock_is_an_error(tmp_path, flock_fails):
    flock_fails(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), held(tmp_path / "x", "", print):
        pass


def write_often(path: Path, value: int, enough) -> None:
    while not enough.is_set():
        io.write_table(path, pa.table({"x": [value] * 1000}), writer=str(value))


def test_a_file_that_two_write_at_once_is_always_that_of_one(tmp_path):
    path, enough = tmp_path / "x.parquet", FORK.Event()
    io.write_table(path, pa.table({"x": [0] * 1000}), writer="0")
    writers = [FORK.Process(target=write_often, args=(path, value, enough)) for value in (1, 2)]
    for writer in writers:
        writer.start()
    seen = []
    try:
        while len(seen) < 200 or not {1, 2} <= set(seen):
            table = io.read_table(path)
            (value,) = set(table["x"].to_pylist())
            assert table.schema.metadata == {b"writer": str(value).encode()}
            seen.append(value)
    finally:
        enough.set()
        for writer in writers:
            writer.join()
    assert [file.name for file in tmp_path.iterdir()] == ["x.parquet"]


@pytest.fixture
def job(tiny):
    """A job of two rounds, evaluated after the second, and what trains it."""
    task, hooks = tiny("head_tuning")
    return task, hooks, replace(tiny_job(manifest.find("head_tuning"), last=2), evaluate=(2,))


@pytest.fixture
def two_jobs(job, tmp_path, monkeypatch):
    """The files of two jobs of the same rounds, of which one has an older plugin, say."""
    monkeypatch.chdir(tmp_path)
    task, hooks, spec = job
    run, end = spec.spec.run, paths.end(2)
    files = {
        "state": paths.at(paths.STATE, run, end=end),
        "evaluation": paths.at(paths.JOB_EVALUATION, run, end=end),
        "rounds": paths.at(paths.JOB_ROUNDS, run, end=end),
        "clients": paths.at(paths.JOB_CLIENTS, run, end=end),
    }
    unused = {name: tmp_path / name for name in ("confusion", "checkpoint.safetensors")}
    outputs = training_job.Outputs(
        **files, confusion=unused["confusion"], checkpoint=unused["checkpoint.safetensors"]
    )
    files["receipt"] = files["state"].with_suffix(".json")
    written = []
    for seed in (0, 1):
        digest = training_job.train(replace(task, seed=seed), hooks, spec, None, outputs, str(seed))
        write_receipt(files["state"], fingerprint=str(seed))
        written.append({name: path.read_bytes() for name, path in files.items()})
        written[-1]["digest"] = digest
    assert written[0]["state"] != written[1]["state"]
    return run, files, written


def test_tables_of_two_jobs_are_not_joined(two_jobs):
    run, files, written = two_jobs
    job = EvaluateJob(run, (2,), confusion=False)
    for mix in itertools.product((0, 1), repeat=4):
        for name, writer in zip((*TABLES, "receipt"), mix, strict=True):
            files[name].write_bytes(written[writer][name])
        if len(set(mix)) == 1:
            evaluate.run(job, threads=1)
            continue
        line = r"rounds/0002.\w+.parquet: of another job than its receipt, .* delete"
        with pytest.raises(FedLoomError, match=line):
            evaluate.run(job, threads=1)


def test_a_state_of_another_job_than_its_receipt_is_not_gone_on_from(two_jobs, job, tmp_path):
    """Its receipt may have the right sha256: it is taken of the file that lies there."""
    _, files, written = two_jobs
    files["state"].write_bytes(written[0]["state"])
    task, hooks, _ = job
    later = tiny_job(manifest.find("head_tuning"), first=2, last=3)
    arguments = (task, hooks, later, files["state"], tiny_outputs(tmp_path), "x")
    with pytest.raises(FedLoomError, match=r"0002.safetensors: damaged since it was written"):
        training_job.train(*arguments, written[1]["digest"])
    training_job.train(*arguments, written[0]["digest"])


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_job_that_another_overtakes_writes_the_same_bytes(tiny, tmp_path, monkeypatch, at):
    """In the midst of a round, a second job of the same rounds begins, and ends first."""
    task, hooks = tiny("head_tuning")
    job = replace(tiny_job(manifest.find("head_tuning"), last=4), evaluate=(4,))

    def train(name: str) -> training_job.Outputs:
        outputs = tiny_outputs(tmp_path / name)
        outputs.state.parent.mkdir(exist_ok=True)
        training_job.train(task, hooks, job, None, outputs, "same")
        return outputs

    def overtaken(task, *rest):
        if task.round == at:
            monkeypatch.setattr(training_job, "train_round", train_round)
            train("shared")
        return train_round(task, *rest)

    straight = train("straight")
    monkeypatch.setattr(training_job, "train_round", overtaken)
    shared = train("shared")
    for kind in ("state", "evaluation", "clients"):
        assert getattr(straight, kind).read_bytes() == getattr(shared, kind).read_bytes()


@pytest.mark.parametrize("at", [2, 3])
def test_a_checkpoint_that_two_jobs_wrote_is_gone_on_from_rightly_or_refused(
    tiny, tmp_path, monkeypatch, at
):
    """The second dies after round 3, and the first after round 3 too; a third goes on."""
    task, hooks = tiny("head_tuning")
    job = replace(tiny_job(manifest.find("head_tuning"), last=4), evaluate=(4,))
    straight, shared = (tiny_outputs(tmp_path / name) for name in ("straight", "shared"))
    for outputs in (straight, shared):
        outputs.state.parent.mkdir()

    def train(outputs: training_job.Outputs) -> None:
        training_job.train(task, hooks, job, None, outputs, "same")

    def dies(task, *rest):
        if task.round == 4:
            raise KeyboardInterrupt
        return train_round(task, *rest)

    def overtaken(task, *rest):
        if task.round == at:
            monkeypatch.setattr(training_job, "train_round", dies)
            with pytest.raises(KeyboardInterrupt):
                train(shared)
        return dies(task, *rest)

    train(straight)
    monkeypatch.setattr(training_job, "train_round", overtaken)
    with pytest.raises(KeyboardInterrupt):
        train(shared)
    monkeypatch.setattr(training_job, "train_round", train_round)
    try:
        train(shared)
    except FedLoomError as refusal:
        assert re.search(r"checkpoint.*delete it and run again", str(refusal))
        shutil.rmtree(shared.checkpoint.with_suffix(""))
        train(shared)
    for kind in ("state", "evaluation", "clients"):
        assert getattr(straight, kind).read_bytes() == getattr(shared, kind).read_bytes()
