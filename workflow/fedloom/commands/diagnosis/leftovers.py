"""What runs left behind in a folder, or still do there: locks, half-written files, jobs."""

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from fedloom.commands import launch
from fedloom.commands.diagnosis import Finding
from fedloom.common import io, locks, processes, scratch
from fedloom.study import paths

SNAKEMAKE_LOCKS = Path(".snakemake/locks")
TIMEOUT = 60  # seconds for Slurm to answer


def runs() -> Iterator[Finding]:
    """Yield whether a run is at work in this folder, and the lock of one that was killed."""
    snakemake, held = launch.running_snakemake(), locks.is_held(launch.LOCK)
    if snakemake is not None:
        fact = f"Snakemake works in this folder (process {snakemake.pid})"
        if launch.of_a_launcher(snakemake) and not held:
            stop = f"let it end, or stop it and its jobs: kill -INT {snakemake.pid}"
            yield Finding(f"{fact}; make run, which started it, was killed: {stop}", well=False)
        else:
            yield Finding(f"{fact}; {launch.LOCK}: {'held' if held else 'not held'}")
    elif held:
        yield Finding(f"{launch.LOCK}: held by a make run, on another host if it goes on")
    else:
        yield Finding("no run is at work in this folder")
    if any(SNAKEMAKE_LOCKS.glob("*")) and snakemake is None and not held:
        yield Finding(
            f"{SNAKEMAKE_LOCKS}: a lock, and no Snakemake works here on this host; the next make "
            "run removes it, or by hand: snakemake --unlock",
            well=False,
        )


def jobs() -> Iterator[Finding]:
    """Yield the jobs that work in this folder: those of a Snakemake, and each that has none."""
    of_snakemake: dict[int, int] = defaultdict(int)
    jobs = list(_jobs(Path.cwd()))
    if not jobs:
        yield Finding("no jobs work in this folder")
    for job in jobs:
        if job.snakemake is not None:
            of_snakemake[job.snakemake] += 1
        else:
            where = f" ({job.log})" if job.log else ""
            yield Finding(
                f"{job.what}: process {job.process} works here for no Snakemake{where}; let it "
                f"end, or: kill {job.process}",
                well=False,
            )
    for snakemake, count in of_snakemake.items():
        yield Finding(f"{count} job{'s' if count > 1 else ''} of Snakemake {snakemake} at work")


class Job(NamedTuple):
    """A job at work on this host.

    Attributes:
        process: that ends the job when it is killed.
        what: its stage, if its command tells.
        log: where it writes its log.
        snakemake: the process of its Snakemake; None if that has ended, or never was.
    """

    process: int
    what: str
    log: str | None
    snakemake: int | None


def _jobs(folder: Path) -> Iterator[Job]:
    """Yield the jobs that work in a folder.

    One that a job server runs is two processes: one that asked for it and ends as it ends, and a
    fork of the server, whose command is the server's. It is the first that is to be ended. A fork
    is a job of its own where no process waits for it, which the log that both name tells.
    """
    forks, logs = list[psutil.Process](), set[str]()
    for process, words in processes.of_folder(folder):
        stage = processes.stage_of(words)
        try:
            if stage is not None:
                log = processes.log_of(words)
                logs.add(log or "")
                yield Job(process.pid, stage, log, _above(process.parents()))
            elif processes.is_fork(process, words):
                forks.append(process)
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue
    for fork in forks:
        try:
            log = _open_log(fork, folder / paths.LOGS)
            if log not in logs:
                known = int(fork.cmdline()[-1])  # the Snakemake that the server is of
                above = [psutil.Process(known)] if psutil.pid_exists(known) else []
                yield Job(fork.pid, "a fork of the job server", log, _above(above))
        except psutil.NoSuchProcess:
            continue


def _open_log(process: psutil.Process, logs: Path) -> str | None:
    """Return the file below the folder of logs that a process has open."""
    files = (Path(file.path) for file in process.open_files())
    return next((os.path.relpath(file) for file in files if logs in file.parents), None)


def _above(ancestors: list[psutil.Process]) -> int | None:
    """Return the process of the Snakemake among a job's ancestors; None if it is not there."""
    for process in ancestors:
        try:
            if processes.is_snakemake(process.cmdline()):
                return process.pid
        except psutil.Error:  # another user's, or gone
            continue
    return None


def half_written() -> Iterator[Finding]:
    """Yield who left temporary files or is writing them, in results and in the scratch folder."""
    mine = scratch.folder()
    for top in (Path(paths.RESULTS), *([mine] if mine else [])):
        files: dict[tuple[str, int], list[Path]] = defaultdict(list)
        for file in top.rglob(".*.tmp"):
            name = io.TEMPORARY.fullmatch(file.name)
            if name:
                files[name["host"], int(name["process"])].append(file)
        for (host, process), its in files.items():
            yield _writer(top, host, process, its)


def _writer(top: Path, host: str, process: int, files: list[Path]) -> Finding:
    """Return what a process was writing when it ended, or is writing.

    Args:
        files: its temporary files, below the folder `top`.
    """
    count = f"{len(files)} half-written file{'s' if len(files) > 1 else ''}"
    fact = f"{top}: {count} of process {process} on {host}, such as {files[0]}"
    pattern = f".*.{host}.{process}.tmp"
    remove = f"find {top} -name '{pattern}' -prune -exec rm -r {{}} +"
    if host != io.host():
        return Finding(f"{fact}; once it has ended there: {remove}", well=False)
    if _writes(process, files):
        return Finding(f"{fact}; it is at work")
    return Finding(f"{fact}; it has ended: {remove}", well=False)


def _writes(process: int, files: list[Path]) -> bool:
    """Return True if a process of this host is the one that began these files."""
    try:
        began = psutil.Process(process).create_time()
    except psutil.NoSuchProcess:
        return False
    for file in files:
        try:
            # a younger process has only got the number of the one that wrote
            if file.stat().st_mtime >= began - 1:
                return True
        except FileNotFoundError:  # it got its name meanwhile
            continue
    return False


def slurm() -> Iterator[Finding]:
    """Yield Slurm's jobs of this user that work in this folder; nothing where Slurm is not."""
    if shutil.which("squeue") is None:
        return
    command = ["squeue", "--me", "--noheader", "--format=%A|%T|%Z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        said = done.stderr.splitlines() or [f"exit status {done.returncode}"]
        failed = said[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        failed = f"no answer in {TIMEOUT} s"
    if failed:  # the tools are there, and perhaps no cluster is
        yield Finding(f"Slurm: squeue cannot tell of jobs ({failed})")
        return
    states: dict[str, str] = {}
    for line in done.stdout.splitlines():
        job, state, folder = line.split("|", 2)
        if Path(folder).resolve() == Path.cwd() and job != os.environ.get("SLURM_JOB_ID"):
            states[job] = state.lower()
    if not states:
        yield Finding("Slurm: no jobs in this folder")
        return
    fact = "Slurm: jobs in this folder: " + ", ".join(f"{j} {s}" for j, s in states.items())
    if launch.running_snakemake() is not None or locks.is_held(launch.LOCK):
        yield Finding(fact)
    else:
        end = f"let them end, or: scancel {' '.join(states)}"
        yield Finding(f"{fact}; no Snakemake here waits for them: {end}", well=False)
