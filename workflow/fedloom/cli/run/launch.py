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
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import psutil
from rich.console import Console

from fedloom.cli.run import run_progress
from fedloom.cli.run.display import follow
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_writable
from fedloom.common.locks import file_lock
from fedloom.machine.install import SNAKEFILE
from fedloom.machine.process_log import QUIET_VARIABLE
from fedloom.planning import paths
from fedloom.planning.load_plan import CHANGES_KEY, LAUNCHER, check_images, load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.records import summary, write_record

LOCK = Path(".fedloom.lock")
# seconds for Snakemake and its jobs to end after a signal
STOP_TIMEOUT = 60
WAITING = "another run is at work in this folder; waiting for it to end"
STUDY_OPTIONS = ("--configfile", "--configfiles", "--config", "-C")


def study_of(arguments: list[str]) -> tuple[Plan, bool]:
    """Return the plan that Snakemake's arguments name, and True if no job is to run."""
    # takes a second
    from snakemake.cli import get_argument_parser, parse_config

    options, _ = get_argument_parser().parse_known_args(arguments)
    try:
        overrides = parse_config(options.config)
    except ValueError as error:
        raise FedLoomError(f"--config: {error}") from None

    runs_nothing = bool(options.dryrun or options.unlock)
    return load_plan(options.configfile, overrides), runs_nothing


def run_snakemake(arguments: list[str], display: bool = False) -> int:
    """Run Snakemake and return its exit status.

    With `display`, its lines are replaced by the display of the study's progress.
    """
    console = Console(stderr=True)

    # on a terminal, Snakemake's lines would break into the display: they are kept for a failure
    keeps_lines = display and console.is_terminal

    with (
        _file_for_lines(keeps_lines) as kept_lines,
        _forwarding_signals() as register,
        # in a process group, so that a signal to the launcher alone can be sent on to all jobs
        subprocess.Popen(
            _command(arguments, display),
            env=_environment(display),
            process_group=0,
            stderr=kept_lines,
        ) as process,
    ):
        signals = register(process)
        if display:
            _display_until_end(process, console, signals)
        status = process.wait()

        # why it did not finish
        if status != 0 and signals:
            print("stopped; the same command resumes it", file=sys.stderr)
            status = -signals[0]
        elif status != 0 and kept_lines is not None:
            kept_lines.seek(0)
            print(kept_lines.read(), end="", file=sys.stderr)

    # a shell's number for the end by a signal
    if status < 0:
        return 128 - status
    return status


def _file_for_lines(needed: bool) -> AbstractContextManager[IO[str] | None]:
    """Return a file that takes Snakemake's lines, or a context of None if none is needed."""
    if needed:
        return TemporaryFile("w+")
    return nullcontext()


def _command(arguments: list[str], display: bool) -> list[str]:
    """Return the command that starts Snakemake, on the Snakefile of this folder if it has one."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    if not Path(SNAKEFILE.name).exists():
        command += ["--snakefile", str(SNAKEFILE)]
    if display:
        command += ["--logger", "fedloom"]
    return command


def _environment(display: bool) -> dict[str, str]:
    """Return the environment in which Snakemake and its jobs run."""
    environment = os.environ | {LAUNCHER: "1"}
    # a random.py of the current folder is not Python's
    environment["PYTHONSAFEPATH"] = "1"
    if display:
        environment[QUIET_VARIABLE] = "1"

    # Snakemake needs a folder for its cache
    home = os.environ.get("HOME", "")
    if not os.access(home, os.W_OK | os.X_OK):
        environment.setdefault("XDG_CACHE_HOME", str(Path(".snakemake/cache").absolute()))
    return environment


def _display_until_end(process: subprocess.Popen, console: Console, signals: list[int]) -> None:
    """Show the study's progress until Snakemake ends; the run goes on if this fails."""
    try:
        follow(lambda: process.poll() is not None, console, signals)
    # an error of the display must not cost hours of training
    except Exception as error:
        print(f"warning: the run goes on without its display: {error!r}", file=sys.stderr)


@contextmanager
def _forwarding_signals() -> Iterator[Callable[[subprocess.Popen], list[int]]]:
    """Send SIGINT and SIGTERM on to a process group, and kill it after STOP_TIMEOUT seconds.

    The yielded function registers the process that leads the group, and returns a list to which
    the signals that arrive are added.

    Snakemake ends its jobs and unlocks on SIGINT; on SIGTERM it would wait for its jobs. Before it
    has any, it would print a traceback on SIGINT, and ends in silence on SIGTERM.

    The handlers are set before the process starts: a shell ignores SIGINT in what it starts in the
    background, and a process inherits that, but not a handler.
    """
    received = list[int]()
    processes = list[subprocess.Popen]()

    def forward(number: int, _: object) -> None:
        received.append(number)
        for process in processes:
            if process.poll() is None:
                ending = signal.SIGTERM
                if _handles_sigterm(process.pid):
                    ending = signal.SIGINT
                os.killpg(process.pid, ending)
                signal.alarm(STOP_TIMEOUT)

    def kill(_: int, __: object) -> None:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)

    def register(process: subprocess.Popen) -> list[int]:
        processes.append(process)
        # a signal came while the process was started
        if received:
            process.terminate()
        return received

    handlers = {signal.SIGINT: forward, signal.SIGTERM: forward, signal.SIGALRM: kill}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield register
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _handles_sigterm(process: int) -> bool:
    """Return True if a process has a handler of SIGTERM; Snakemake has one once it runs jobs."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        # a bit per signal that is caught
        if line.startswith("SigCgt:"):
            caught = int(line.split()[1], 16)
            return bool(caught >> (signal.SIGTERM - 1) & 1)
    raise AssertionError("/proc has the line SigCgt of every process")


def is_locked() -> bool:
    """Return True if Snakemake's lock of this folder is there: it is at work, or was killed."""
    return any(Path(".snakemake/locks").glob("*"))


def remove_stale_lock(arguments: list[str]) -> None:
    """Remove the lock of a killed Snakemake.

    A Snakemake at work in this folder is an error, if this user may see it.
    """
    here = str(Path.cwd())
    for process in psutil.process_iter(["cwd", "cmdline"]):
        words = process.info["cmdline"] or []
        names = [Path(word).name for word in words[:3]]
        if process.info["cwd"] == here and "snakemake" in names:
            raise FedLoomError(f"snakemake (process {process.pid}) works here; wait for it")

    print("removing the lock of a run that was killed", file=sys.stderr)
    run_snakemake([*arguments, "--unlock"])


def exclusive_folder() -> AbstractContextManager[None]:
    """Acquire this folder's lock, waiting for other runs to finish."""
    return file_lock(LOCK, WAITING, partial(print, file=sys.stderr))


def run_study(
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
    # the study must be named once: Snakemake would take the last one and ignore the other
    naming = [word for word in options if word.partition("=")[0] in STUDY_OPTIONS]
    if naming and (files or changes):
        raise FedLoomError(f"{naming[0]}: is given with a study or --set before `--`; give one")

    # all of it in Snakemake's own arguments
    arguments = [*options]
    if files:
        arguments += ["--configfile", *map(str, files)]
    if changes:
        arguments += ["--config", f"{CHANGES_KEY}={json.dumps(changes)}"]
    if cores:
        arguments += ["--cores", str(cores)]
    if dry:
        arguments += ["--dry-run"]

    # Snakemake's options may name the study, or say that no job is to run
    if options:
        study, dry = study_of(arguments)
    else:
        study = load_plan(files, {CHANGES_KEY: [*changes]})
    if dry:
        return run_snakemake(arguments)

    check_writable(Path(paths.RESULTS))
    with exclusive_folder():
        check_images(study)
        if is_locked():
            remove_stale_lock(arguments)

        # while this run holds the folder, no other one changes the results
        run_progress.begin(study, arguments)
        try:
            status = run_snakemake(arguments, display=True)
            if status == 0:
                _finish(study, reporting)
        finally:
            run_progress.end()
    return status


def _finish(study: Plan, reporting: bool) -> None:
    """Write the record of a study that has run, and print its first table and its report's path."""
    write_record(study)
    print(f"\n{summary(study)}")
    if reporting:
        # takes seconds
        from fedloom.report import page

        print(f"report  {page.write(study)}")
