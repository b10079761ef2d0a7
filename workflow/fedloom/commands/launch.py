"""`fedloom run` and `fedloom report`: Snakemake, one run at a time in a folder.

This process holds the folder's lock, and also waits for a Snakemake whose launcher was killed. Jobs
may outlive both (they take turns by the run folder's lock, see federated/training_job.py).
Snakemake's own lock is only files: it outlives a killed run and is removed then. Settings are in
profiles/default, which plain `snakemake` reads too.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console

from fedloom.commands import course
from fedloom.commands.planning import LAUNCHER, SET, check_images, load_plan
from fedloom.commands.trackers import find
from fedloom.common.checkout import SNAKEFILE
from fedloom.common.errors import FedLoomError
from fedloom.common.locks import held
from fedloom.common.logs import QUIET
from fedloom.study import paths
from fedloom.study.endings import summary
from fedloom.study.plan import Plan
from fedloom.study.records import write_record

log = logging.getLogger(__name__)

LOCK = Path(".fedloom.lock")
PATIENCE = 60  # seconds to end: of Snakemake and its jobs after a signal, of trackers after a run
WAITING = "another run is at work in this folder; waiting for it to end"


def running_snakemake() -> psutil.Process | None:
    """Return a Snakemake at work in this folder that we did not start.

    Those of other users, whose folders only root may know, are left out.
    """
    for process in psutil.process_iter(["cwd", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] == str(Path.cwd()) and any(
            Path(word).name == "snakemake" for word in words[:3]
        ):
            return process
    return None


def of_a_launcher(process: psutil.Process) -> bool:
    """Return True if a launcher started this Snakemake."""
    try:
        return LAUNCHER in process.environ()
    except psutil.Error:  # another user's, or gone
        return False


def study_of(arguments: list[str]) -> tuple[Plan, bool]:
    """Return the plan of the study that Snakemake's arguments name, and True for a dry run."""
    from snakemake.cli import get_argument_parser, parse_config  # takes a second

    options, _ = get_argument_parser().parse_known_args(arguments)
    try:
        overrides = parse_config(options.config)
    except ValueError as error:
        raise FedLoomError(f"--config: {error}") from None
    return load_plan(options.configfile, overrides), bool(options.dryrun)


def snakemake(arguments: list[str], shown: bool = False) -> int:
    """Run Snakemake and return its exit status.

    Args:
        shown: the course of its jobs is displayed, in place of its own lines and theirs.
    """
    snakefile = [] if Path(SNAKEFILE.name).exists() else ["--snakefile", str(SNAKEFILE)]
    command = [sys.executable, "-m", "snakemake", *snakefile, *arguments]
    command += ["--logger", "fedloom"] if shown else []
    environment = os.environ | {LAUNCHER: "1"} | ({QUIET: "1"} if shown else {}) | _cache()
    # a new process group, so that a signal to the launcher alone can be handed on to all jobs
    with (
        subprocess.Popen(command, process_group=0, env=environment) as process,
        _handing_on(process, shown) as signals,
    ):
        if shown:
            from fedloom.commands.display import follow  # takes a tenth of a second

            try:
                follow(lambda: process.poll() is not None, Console(stderr=True))
            except Exception as error:  # the jobs go on, and signals are still handed on
                log.warning("the run goes on without its display: %r", error)
        status = process.wait()
        if status and signals:
            print("stopped; the same command resumes it", file=sys.stderr)
            status = -signals[0]
        return status if status >= 0 else 128 - status  # as a shell has it


def _cache() -> dict[str, str]:
    """Return a variable that keeps programs' caches here if the home folder is not writable."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache.mkdir(parents=True, exist_ok=True)
        usable = os.access(cache, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder at all
        usable = False
    return {} if usable else {"XDG_CACHE_HOME": str(Path(".snakemake/cache").absolute())}


@contextmanager
def _handing_on(process: subprocess.Popen, shown: bool = False) -> Iterator[list[int]]:
    """Hand SIGINT and SIGTERM on to the process group, and yield a list that they are added to.

    Kill what does not end in PATIENCE.

    Snakemake ends its jobs and unlocks on SIGINT; on SIGTERM it would wait for its jobs. Before it
    has any, it would print a traceback on SIGINT, and ends in silence on SIGTERM.
    """

    received = list[int]()

    def forward(number: int, _: object) -> None:
        if number == signal.SIGALRM:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.poll() is None:
            received.append(number)
            number = signal.SIGINT if _handles_sigterm(process.pid) else signal.SIGTERM
            try:
                if shown:
                    course.note(course.STOP)  # before its jobs end, and seem to have failed
            finally:
                os.killpg(process.pid, number)
                signal.alarm(PATIENCE)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield received
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _handles_sigterm(process: int) -> bool:
    """Return True if a process has a handler of SIGTERM; Snakemake has one once it runs jobs."""
    status = Path(f"/proc/{process}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def report(study: Plan) -> None:
    """Write the report of a study that has finished."""
    from fedloom.report import page  # slow to import, and a run needs none of it

    print(f"report  {page.write(study)}")


def locked() -> bool:
    """Return True if Snakemake's lock of this folder is there: of one at work, or killed."""
    return any(Path(".snakemake/locks").glob("*"))


def unlock(arguments: list[str]) -> int:
    """Remove the lock of a killed Snakemake and return the exit status: 2 if one is at work."""
    process = running_snakemake()
    if process is not None:
        print(f"error: snakemake (process {process.pid}) works in this folder", file=sys.stderr)
        return 2
    if not locked():
        print("no run has left a lock in this folder", file=sys.stderr)
        return 0
    print("removing the lock of a run that was killed", file=sys.stderr)
    return snakemake([*arguments, "--unlock"])


@contextmanager
def alone() -> Iterator[None]:
    """Hold this folder's lock, after the runs that other launchers started have ended."""
    with held(LOCK, WAITING, partial(print, file=sys.stderr)):
        orphan = running_snakemake()
        if orphan is not None and of_a_launcher(orphan):  # its launcher held the lock, and died
            print(f"{WAITING} (process {orphan.pid})", file=sys.stderr)
            orphan.wait()
        yield


@contextmanager
def following(names: Sequence[str]) -> Iterator[None]:
    """Run `fedloom track` for each name until the run's events end; say which failed."""
    started = {}
    for name in names:
        file = paths.at(paths.TRACKED, tracker=name).with_suffix(".log")
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "fedloom", "track", name]
        with file.open("w") as log:  # a process group: a terminal's signals reach the run alone
            started[file] = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
    try:
        yield
    finally:
        if started:
            course.note(course.END)
        deadline = time.monotonic() + PATIENCE
        for file, process in started.items():
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                os.killpg(process.pid, signal.SIGKILL)  # with the processes of its client
            if process.wait() != 0:
                line = f"tracker {file.stem} failed, or took {PATIENCE} s longer than the run"
                print(f"warning: {line}; see {file}", file=sys.stderr)


def _instead_of(files: Sequence[Path], changes: Sequence[str]) -> set[str]:
    """Return the options of Snakemake that stand for a study's files and changes."""
    options = {"--configfile", "--configfiles"} if files else set[str]()
    return options | ({"--config", "-C"} if changes else set())


def run(
    files: Sequence[Path] = (),
    changes: Sequence[str] = (),
    cores: int | None = None,
    dry: bool = False,
    options: Sequence[str] = (),
    reporting: bool = False,
    trackers: Sequence[str] = (),
) -> int:
    """Run a study, or write its report too, and return Snakemake's exit status.

    Args:
        files: of the study; Snakemake's `options` may name them instead.
        changes: keys of the config and their values, as "study.rounds=4".
        trackers: follow the run, see fedloom.commands.track.
    """
    for name in trackers:
        find(name)  # a run that nobody would see is refused before it begins
    twice = [word for word in options if word.partition("=")[0] in _instead_of(files, changes)]
    if twice:  # Snakemake would take the last of them alone
        raise FedLoomError(f"{twice[0]}: is given with a study or --set before `--`; give one")
    arguments = [*options, *(["--configfile", *map(str, files)] if files else [])]
    arguments += ["--config", f"{SET}={json.dumps(changes)}"] if changes else []
    arguments += ["--cores", str(cores)] if cores else []
    arguments += ["--dry-run"] if dry else []
    if options:
        study, dry = study_of(arguments)
    else:
        study = load_plan(files, {SET: list(changes)})
    if dry:
        return snakemake(arguments)
    with alone():
        if "--unlock" in options:
            return unlock(arguments)  # it runs no job, so there is nothing to tell of
        check_images(study)
        course.begin(study, arguments)
        with following(trackers):
            status = (locked() and unlock(arguments)) or snakemake(arguments, shown=True)
            if status == 0:  # before another run may change the results
                write_record(study)
                print(f"\n{summary(study)}")
                if reporting:
                    report(study)
    return status
