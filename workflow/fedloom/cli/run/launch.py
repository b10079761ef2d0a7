"""`fedloom run` and `fedloom report`: Snakemake, one run at a time in a folder.

This process holds the folder's lock. Jobs may outlive it and Snakemake (they take turns by the run
folder's lock, see federated/training_job.py). Snakemake's own lock is only files: it outlives a
killed run and is removed then. Settings are in profiles/default, which plain `snakemake` reads too.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

import psutil
from rich.console import Console

from fedloom.cli.run import run_progress
from fedloom.cli.run.display import follow
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_usable
from fedloom.common.locks import held
from fedloom.machine.install import SNAKEFILE
from fedloom.machine.process_log import QUIET
from fedloom.planning import paths
from fedloom.planning.load_plan import LAUNCHER, SET, check_images, load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.records import summary, write_record

LOCK = Path(".fedloom.lock")
PATIENCE = 60  # seconds for Snakemake and its jobs to end after a signal
WAITING = "another run is at work in this folder; waiting for it to end"
STUDY_OPTIONS = ("--configfile", "--configfiles", "--config", "-C")


def study_of(arguments: list[str]) -> tuple[Plan, bool]:
    """Return the plan that Snakemake's arguments name, and True if no job is to run."""
    from snakemake.cli import get_argument_parser, parse_config  # takes a second

    options, _ = get_argument_parser().parse_known_args(arguments)
    try:
        overrides = parse_config(options.config)
    except ValueError as error:
        raise FedLoomError(f"--config: {error}") from None
    return load_plan(options.configfile, overrides), bool(options.dryrun or options.unlock)


def snakemake(arguments: list[str], shown: bool = False) -> int:
    """Run Snakemake, its course `shown` in place of its own lines, and return its exit status."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    command += [] if Path(SNAKEFILE.name).exists() else ["--snakefile", str(SNAKEFILE)]
    command += ["--logger", "fedloom"] if shown else []
    environment = os.environ | {LAUNCHER: "1"} | ({QUIET: "1"} if shown else {})
    environment["PYTHONSAFEPATH"] = "1"  # the current folder's random.py is not Python's
    if not os.access(os.environ.get("HOME", ""), os.W_OK | os.X_OK):  # Snakemake needs a cache
        environment.setdefault("XDG_CACHE_HOME", str(Path(".snakemake/cache").absolute()))
    console = Console(stderr=True)
    # On a terminal, Snakemake's lines would break into the display, so they are kept for a failure.
    # A new process group, so that a signal to the launcher alone can be handed on to all jobs.
    with (
        TemporaryFile("w+") if shown and console.is_terminal else nullcontext() as said,
        _handing_on() as started,
        subprocess.Popen(command, process_group=0, env=environment, stderr=said) as process,
    ):
        signals = started(process)
        if shown:
            try:
                follow(lambda: process.poll() is not None, console, signals)
            except Exception as error:  # hours of training are not lost by what shows them
                print(f"warning: the run goes on without its display: {error!r}", file=sys.stderr)
        status = process.wait()
        if status and signals:
            print("stopped; the same command resumes it", file=sys.stderr)
            status = -signals[0]
        elif status and said:
            said.seek(0)
            print(said.read(), end="", file=sys.stderr)
        return status if status >= 0 else 128 - status  # as a shell has it


@contextmanager
def _handing_on() -> Iterator[Callable[[subprocess.Popen], list[int]]]:
    """Hand SIGINT and SIGTERM on to a process group, which the yielded function is told of.

    That returns a list to which the signals are added. What does not end in PATIENCE is killed.
    Snakemake ends its jobs and unlocks on SIGINT; on SIGTERM it would wait for its jobs. Before it
    has any, it would print a traceback on SIGINT, and ends in silence on SIGTERM.

    The handlers are set before the process starts: a shell ignores SIGINT in what it starts in the
    background, and a process inherits that, but not a handler.
    """
    received, processes = list[int](), list[subprocess.Popen]()

    def forward(number: int, _: object) -> None:
        if number != signal.SIGALRM:
            received.append(number)
        for process in processes:
            if number == signal.SIGALRM:
                os.killpg(process.pid, signal.SIGKILL)
            elif process.poll() is None:
                running = _handles_sigterm(process.pid)
                os.killpg(process.pid, signal.SIGINT if running else signal.SIGTERM)
                signal.alarm(PATIENCE)

    def started(process: subprocess.Popen) -> list[int]:
        processes.append(process)
        if received:  # while it was started
            process.terminate()
        return received

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield started
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _handles_sigterm(process: int) -> bool:
    """Return True if a process has a handler of SIGTERM; Snakemake has one once it runs jobs."""
    status = Path(f"/proc/{process}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def locked() -> bool:
    """Return True if Snakemake's lock of this folder is there: of one at work, or killed."""
    return any(Path(".snakemake/locks").glob("*"))


def unlock(arguments: list[str]) -> None:
    """Remove the lock of a killed Snakemake; one at work is an error, if this user may see it."""
    for process in psutil.process_iter(["cwd", "cmdline"]):
        names = [Path(word).name for word in (process.info["cmdline"] or [])[:3]]
        if process.info["cwd"] == str(Path.cwd()) and "snakemake" in names:
            raise FedLoomError(f"snakemake (process {process.pid}) works here; wait for it")
    print("removing the lock of a run that was killed", file=sys.stderr)
    snakemake([*arguments, "--unlock"])


def alone() -> AbstractContextManager[None]:
    """Hold this folder's lock, after the runs that other launchers started have ended."""
    return held(LOCK, WAITING, partial(print, file=sys.stderr))


def run(
    files: Sequence[Path] = (),
    changes: Sequence[str] = (),
    cores: int | None = None,
    dry: bool = False,
    options: Sequence[str] = (),
    reporting: bool = False,
) -> int:
    """Run a study, or write its report too, and return Snakemake's exit status.

    Snakemake's `options` may name the study instead of `files`, and `changes` are as
    "study.rounds=4".
    """
    twice = [word for word in options if word.partition("=")[0] in STUDY_OPTIONS]
    if twice and (files or changes):  # Snakemake would take the last alone
        raise FedLoomError(f"{twice[0]}: is given with a study or --set before `--`; give one")
    arguments = [*options, *(["--configfile", *map(str, files)] if files else [])]
    arguments += ["--config", f"{SET}={json.dumps(changes)}"] if changes else []
    arguments += ["--cores", str(cores)] if cores else []
    arguments += ["--dry-run"] if dry else []
    study, dry = study_of(arguments) if options else (load_plan(files, {SET: [*changes]}), dry)
    if dry:
        return snakemake(arguments)
    check_usable(Path(paths.RESULTS))
    with alone():
        check_images(study)
        if locked():
            unlock(arguments)
        run_progress.begin(study, arguments)
        try:
            status = snakemake(arguments, shown=True)
            if status == 0:  # before another run may change the results
                write_record(study)
                print(f"\n{summary(study)}")
                if reporting:  # imported only now, as it is slow
                    print(f"report  {import_module('fedloom.report.page').write(study)}")
        finally:
            run_progress.end()
    return status
