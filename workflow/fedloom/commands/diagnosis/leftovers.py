"""What runs left behind in a folder, or still do there: locks, half-written files, jobs."""

import os
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from fedloom.commands import launch, processes
from fedloom.commands.doctor import Finding
from fedloom.common import io, locks, scratch
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
    """Yield the jobs that work in this folder: those of a Snakemake, and each that has none.

    A job on a job server is known by the process that asked for it.
    """
    of_snakemake = Counter[int]()
    orphans = 0
    for process, words in processes.of_folder(Path.cwd()):
        stage, log = processes.stage_of(words), processes.log_of(words)
        if stage is None:
            continue
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            snakemake = _above(process.parents())
            if snakemake is not None:
                of_snakemake[snakemake] += 1
                continue
            orphans += 1
            where = f" ({log})" if log else ""
            yield Finding(
                f"{stage}: process {process.pid} works here for no Snakemake{where}; let it end, "
                f"or: kill {process.pid}",
                well=False,
            )
    for snakemake, count in of_snakemake.items():
        yield Finding(f"{count} job{'s' if count > 1 else ''} of Snakemake {snakemake} at work")
    if not of_snakemake and not orphans:
        yield Finding("no jobs work in this folder")


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
    copies = scratch.folder()
    for top in (Path(paths.RESULTS), *([copies] if copies else [])):
        writers: dict[tuple[str, int], list[Path]] = defaultdict(list)
        for file in top.rglob(".*.tmp"):
            name = io.TEMPORARY.fullmatch(file.name)
            if name:
                writers[name["host"], int(name["process"])].append(file)
        for (host, process), files in writers.items():
            count = f"{len(files)} half-written file{'s' if len(files) > 1 else ''}"
            fact = f"{top}: {count} of process {process} on {host}, such as {files[0]}"
            remove = f"find {top} -name '.*.{host}.{process}.tmp' -prune -exec rm -r {{}} +"
            if host != io.host():
                yield Finding(f"{fact}; once it has ended there: {remove}", well=False)
            elif _writes(process, files):
                yield Finding(f"{fact}; it is at work")
            else:
                yield Finding(f"{fact}; it has ended: {remove}", well=False)


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
