"""`make run` and `make report`: Snakemake, after whatever an earlier run left behind.

What is FedLoom's own here is the lock: it says whether a run is alive. This process holds it, and
waits besides for a Snakemake whose launcher was killed. Jobs may outlive both (they take turns by
the run folder's lock, see federated/training_job.py). Snakemake's own lock, which is only files,
outlives a killed run and is removed then. Settings are in profiles/default, which plain `snakemake`
reads too.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from snakemake.cli import get_argument_parser, parse_config

from fedloom.commands import processes
from fedloom.common.locks import held
from fedloom.study import paths
from fedloom.study.plan import LAUNCHER, Plan

LOCK = Path(".fedloom.lock")
PATIENCE = 60  # seconds that Snakemake and its jobs have to end after a signal
WAITING = "another run is at work in this folder; waiting for it to end"


def running_snakemake() -> psutil.Process | None:
    """Return a Snakemake at work in this folder that we did not start."""
    for process, words in processes.of_folder(Path.cwd()):
        if processes.is_snakemake(words):
            return process
    return None


def of_a_launcher(process: psutil.Process) -> bool:
    """Return True if a launcher started this Snakemake."""
    try:
        return LAUNCHER in process.environ()
    except psutil.Error:  # another user's, or gone
        return False


def study_of(arguments: list[str]) -> tuple[Plan, bool]:
    """Return the plan of the study that Snakemake's arguments name, and True for a dry run.

    Snakemake's own parser reads them, so that whatever it accepts (`-np`, `--config a=b`) counts.
    """
    options, _ = get_argument_parser().parse_known_args(arguments)
    try:
        overrides = parse_config(options.config)
    except ValueError as error:
        sys.exit(f"error: --config: {error}")
    return Plan.load(options.configfile, overrides), bool(options.dryrun)


def snakemake(arguments: list[str]) -> int:
    """Run Snakemake and return its exit status."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    environment = os.environ | {LAUNCHER: "1"} | _cache()
    # a process group of its own, so that a signal that reaches the launcher alone can be handed on
    # to Snakemake and to all of its jobs
    with (
        subprocess.Popen(command, process_group=0, env=environment) as process,
        _handing_on(process),
    ):
        status = process.wait()
        return status if status >= 0 else 128 - status  # as a shell has it


def _cache() -> dict[str, str]:
    """Return where programs may keep caches if the home folder cannot be written to: in here."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache.mkdir(parents=True, exist_ok=True)
        usable = os.access(cache, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder at all
        usable = False
    return {} if usable else {"XDG_CACHE_HOME": str(Path(".snakemake/cache").absolute())}


@contextmanager
def _handing_on(process: subprocess.Popen) -> Iterator[None]:
    """Hand SIGINT and SIGTERM on to the process group, and kill what does not end in PATIENCE.

    Snakemake ends its jobs and unlocks on SIGINT; on SIGTERM it would wait for its jobs. Before it
    has any, it would print a traceback on SIGINT, and ends in silence on SIGTERM.
    """

    def forward(number: int, _: object) -> None:
        if number == signal.SIGALRM:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.poll() is None:
            number = signal.SIGINT if _handles_sigterm(process.pid) else signal.SIGTERM
            os.killpg(process.pid, number)
            signal.alarm(PATIENCE)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _handles_sigterm(process: int) -> bool:
    """Return True if a process has a handler of SIGTERM; Snakemake has one once it runs jobs."""
    status = Path(f"/proc/{process}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def report(study: Plan, arguments: list[str]) -> int:
    """Write the study's report and return Snakemake's exit status."""
    path = paths.at(paths.REPORT, study=study.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    style = ["--report-stylesheet", "workflow/captions/style.css"]
    status = snakemake(["--report", str(path), *style, *arguments])
    if status == 0:
        print(f"report  {path}")
    return status


def unlock(arguments: list[str]) -> int:
    """Remove the lock that a killed Snakemake left behind, and return the exit status.

    Refuse, with status 2, where one is at work that this launcher did not start.
    """
    process = running_snakemake()
    if process is not None:
        print(f"error: snakemake (process {process.pid}) works in this folder", file=sys.stderr)
        return 2
    print("removing the lock of a run that was killed", file=sys.stderr)
    return snakemake([*arguments, "--unlock"])


@contextmanager
def alone() -> Iterator[None]:
    """Hold this folder's lock, after the runs that other launchers started have ended."""
    with held(LOCK, WAITING, partial(print, file=sys.stderr)):
        orphan = running_snakemake()
        if orphan is not None and of_a_launcher(orphan):  # its launcher held the lock, and died
            print(WAITING, file=sys.stderr)
            orphan.wait()
        yield


def main() -> int:
    """Run Snakemake with the arguments given, after the word "report" also its report."""
    arguments = sys.argv[1:]
    reporting = arguments[:1] == ["report"]
    arguments = arguments[reporting:]
    study, dry = study_of(arguments)
    if dry:
        return snakemake(arguments)
    with alone():
        if any(Path(".snakemake/locks").glob("*")):
            status = unlock(arguments)
            if status != 0:
                return status
        status = snakemake(arguments)
    if status != 0:
        return status
    print(f"\n{study.summary()}")
    return report(study, arguments) if reporting else status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while it waits for another run
        sys.exit("interrupted")
