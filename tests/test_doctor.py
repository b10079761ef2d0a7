"""`fedloom doctor` finds what needs a hand, and its commands mend it; every case is a real one."""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedloom.commands import doctor, job, launch
from fedloom.commands.diagnosis import environment
from fedloom.common import gpus, io, scratch
from fedloom.common.checkout import ROOT
from fedloom.common.logs import JOB_IDS
from fedloom.study import paths
from fedloom.study.jobs import EvaluateJob, to_json
from fedloom.study.plan import LAUNCHER
from fedloom.study.runs import Run

RUN = Run("d", "p", "b", "m", 0)
JOB = to_json(EvaluateJob(RUN, ends=(1,), confusion=False))
LOG = "results/logs/evaluate/a.log"
SNAKEFILE = f"""
import sys
shell.prefix(f"export PYTHONPATH={ROOT / "workflow"} {job.VARIABLE}=''; ")
rule all:
    output: "done"
    params: job={JOB!r}, python=sys.executable
    shell: "{{params.python}} -m fedloom.commands.job evaluate --job {{params.job:q}} --log {LOG}"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, program):
    """A folder on a machine without GPUs, on which Slurm has no jobs."""
    for name in (*JOB_IDS, scratch.VARIABLE, gpus.VISIBLE):
        monkeypatch.delenv(name, raising=False)
    program("squeue", "")
    program("nvidia-smi", "echo No devices were found; exit 6")
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "study")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(name, script): a program of that name comes first in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name: str, script: str) -> Path:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
        return tmp_path / name

    return write


@pytest.fixture
def look(capsys):
    """look(): the lines that need a hand, and all others; the exit status says which there are."""

    def run() -> tuple[list[str], list[str]]:
        try:
            doctor.run(argparse.Namespace())
            status = 0
        except SystemExit as end:
            status = end.code
        *lines, last = capsys.readouterr().out.splitlines()
        mend = [line.removeprefix("MEND  ") for line in lines if line.startswith("MEND  ")]
        well = [line.removeprefix("ok    ") for line in lines if line.startswith("ok    ")]
        assert len(mend) + len(well) == len(lines)
        assert status == bool(mend)
        needs = "1 line needs" if len(mend) == 1 else f"{len(mend)} lines need"
        assert last == (f"{needs} a hand" if mend else "all is well")
        return mend, well

    return run


@pytest.fixture
def start():
    """start(*command, **environment): a process that is killed after the test, with its group."""
    started = []

    def make(*command: str | Path, **known: str) -> subprocess.Popen:
        process = subprocess.Popen(command, env=os.environ | known, start_new_session=True)
        started.append(process)
        return process

    yield make
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def soon(condition) -> None:
    """Wait until a condition holds, and fail after twenty seconds."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def blocked_job() -> None:
    """Let the job wait for ever, with its log open, for a receipt that it reads."""
    receipt = paths.at(paths.receipt(paths.STATE), RUN, end=paths.end(1))
    receipt.parent.mkdir(parents=True)
    os.mkfifo(receipt)


def at_work(log: str = LOG) -> bool:
    """Return True if some process has the log open."""
    return any(
        file.path == str(Path(log).absolute())
        for process in psutil.process_iter(["open_files"])
        for file in process.info["open_files"] or []
    )


def test_a_healthy_folder_is_well(look):
    mend, well = look()
    assert mend == []
    assert well[0].startswith(f"Python {sys.version.split()[0]}, torch ")
    assert "slurm" in well[1]
    assert [line.split(":")[0] for line in well[2:6]] == [
        *("cores", "memory", "GPUs", "disk of results"),
    ]
    assert well[6:] == [
        "no run is at work in this folder",
        "no jobs work in this folder",
        "Slurm: no jobs in this folder",
    ]


def test_a_killed_snakemake_leaves_a_lock_and_a_job(look, start):
    blocked_job()
    Path("Snakefile").write_text(SNAKEFILE)
    snakemake = start(sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all")
    soon(at_work)
    mend, well = look()
    assert mend == []
    works = f"Snakemake works in this folder (process {snakemake.pid})"
    assert f"{works}; .fedloom.lock: not held" in well
    assert f"1 job of Snakemake {snakemake.pid} at work" in well
    snakemake.kill()
    snakemake.wait()
    lock, orphan = look()[0]
    assert lock.startswith(".snakemake/locks: ") and lock.endswith("snakemake --unlock")
    told = r"evaluate: process \d+ works here for no Snakemake \((.*)\); let it end, or: (kill \d+)"
    log, command = re.fullmatch(told, orphan).groups()
    assert log == LOG
    subprocess.run(command.split(), check=True)
    soon(lambda: not at_work())
    assert look()[0] == [lock]
    shutil.rmtree(".snakemake/locks")
    assert look()[0] == []


def test_a_process_above_a_job_that_may_not_be_looked_at(look, start, monkeypatch):
    """Above a job that runs by `sudo`, for one, are processes of another user."""
    blocked_job()
    known = {job.VARIABLE: "", "PYTHONPATH": str(ROOT / "workflow")}
    start(
        sys.executable,
        *("-m", "fedloom.commands.job", "evaluate", "--job", JOB, "--log", LOG),
        **known,
    )
    soon(at_work)

    def hidden(process):
        raise psutil.AccessDenied(process.pid)

    seen = psutil.Process.cmdline
    mine = psutil.Process().parents()
    monkeypatch.setattr(
        psutil.Process, "cmdline", lambda one: hidden(one) if one in mine else seen(one)
    )
    (orphan,) = look()[0]
    assert "works here for no Snakemake" in orphan


def test_a_run_that_goes_on(look):
    with launch.alone():
        assert ".fedloom.lock: held by a make run, on another host if it goes on" in look()[1]
    assert "no run is at work in this folder" in look()[1]


def test_a_snakemake_whose_launcher_was_killed(look, program, start):
    script = program("snakemake", "sleep 600")
    orphan = start("sh", script, **{LAUNCHER: "1"})
    (line,) = look()[0]
    assert "make run, which started it, was killed: let it end, or stop" in line
    assert line.endswith(f"kill -INT {orphan.pid}")


def killed_writer(path: str) -> int:
    """Kill a process while it writes a file, and return its number."""
    code = (
        "import os, signal, sys; from pathlib import Path; from fedloom.common import io\n"
        "io.host.cache_clear()\n"
        f"path = Path({path!r})\n"
        "with io.temporary_folder(path) as folder, io.replacing(path) as file:\n"
        "    print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    known = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    done = subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True)
    return int(done.stdout)


def test_half_written_files_of_a_killed_process(look, monkeypatch, tmp_path):
    monkeypatch.setenv(scratch.VARIABLE, str(tmp_path))
    copies = scratch.folder()
    process = killed_writer("results/runs/a.safetensors")
    other = killed_writer(f"{copies}/b.arrow")
    Path("results/runs/b.safetensors").touch()
    first, second = look()[0]
    line = f"results: 2 half-written files of process {process} on {io.host()}, such as "
    assert first.startswith(f"{line}results/runs/.a.safetensors.")
    assert second.startswith(f"{copies}: 2 half-written files of process {other} on ")
    for line in first, second:
        subprocess.run(["sh", "-c", line.partition("; it has ended: ")[2]], check=True)
    assert look()[0] == []
    assert [file.name for file in Path("results/runs").iterdir()] == ["b.safetensors"]


def test_files_that_are_being_written_are_well(look):
    with io.replacing(Path("results/a")) as temporary:
        mend, well = look()
        assert mend == []
        line = f"results: 1 half-written file of process {os.getpid()} on {io.host()}, such as "
        assert f"{line}{temporary}; it is at work" in well
        # long before this process began: another one had its number then
        os.utime(temporary, (0, 0))
        assert look()[0][0].startswith(f"{line}{temporary}; it has ended: find results")


def test_files_of_another_host(look):
    Path("results").mkdir()
    Path("results/.a.elsewhere.12.tmp").touch()
    assert look()[0] == [
        "results: 1 half-written file of process 12 on elsewhere, such as "
        "results/.a.elsewhere.12.tmp; once it has ended there: "
        "find results -name '.*.elsewhere.12.tmp' -prune -exec rm -r {} +"
    ]


def test_jobs_of_slurm_in_this_folder(look, program, monkeypatch):
    here = Path.cwd()
    lines = f"11|RUNNING|{here}\n12|RUNNING|{here}\n13|PENDING|{here}\n14|RUNNING|{here}/below\n"
    program("squeue", f"[ \"$*\" = '--me --noheader --format=%A|%T|%Z' ] && printf '{lines}'")
    monkeypatch.setenv("SLURM_JOB_ID", "11")  # in which the doctor itself is
    jobs = "Slurm: jobs in this folder: 12 running, 13 pending"
    assert look()[0] == [
        f"{jobs}; no Snakemake here waits for them: let them end, or: scancel 12 13"
    ]
    with launch.alone():
        mend, well = look()
    assert mend == []
    assert well[-1] == jobs


def test_a_slurm_that_does_not_answer_is_said_and_needs_no_hand(look, program):
    program("squeue", "echo starting >&2; echo 'squeue: error: no controller' >&2; exit 1")
    mend, well = look()
    assert mend == []
    assert well[-1] == "Slurm: squeue cannot tell of jobs (squeue: error: no controller)"


def test_disks(look, monkeypatch):
    Path("results").touch()
    monkeypatch.setenv(scratch.VARIABLE, "/no/such/folder")
    results, copies = look()[0]
    assert results.startswith("results: ")
    assert copies.startswith(f"{scratch.VARIABLE}: /no/such/folder ")
    Path("results").unlink()
    monkeypatch.setenv(scratch.VARIABLE, str(Path.cwd()))
    monkeypatch.setattr(environment, "LITTLE", 1e18)
    for line, what in zip(look()[0], ("results", scratch.VARIABLE), strict=True):
        told = rf"disk of {what}: [\d.]+ GB free in {Path.cwd()}; make room, or .*"
        assert re.fullmatch(told, line)


def test_gpus(look, program, monkeypatch):
    program("nvidia-smi", 'for i in 0 1 2; do echo "GPU $i: H100 (UUID: GPU-doctor-$i)"; done')
    monkeypatch.setenv(gpus.VISIBLE, "0,2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    line = "GPUs: H100, H100, H100; jobs may take 2 devices (CUDA_VISIBLE_DEVICES is '0,2'), of "
    with gpus._lock("GPU-doctor-2"):
        assert f"{line}which 1 are free" in look()[1]
    assert f"{line}which 2 are free" in look()[1]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert [text.split(":")[1][:25] for text in look()[0]] == [" cannot use these GPUs; s"]
    program("nvidia-smi", "echo no driver >&2; exit 9")
    assert look()[0] == ["nvidia-smi -L: no driver"]


def test_a_package_that_is_missing(look, monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("timm", "nosuchpackage"))
    (line,) = look()[0]
    assert line.startswith("nosuchpackage: not installed")
