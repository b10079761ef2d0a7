"""`fedloom run` and `fedloom report`: run Snakemake, once at a time in a folder.

There are three locks:

- This process holds the lock of the folder, so that one study at a time runs in it.
- Jobs may outlive this process and Snakemake. The lock of a run's folder makes jobs of the same run
  take turns (federated/training_job.py).
- Snakemake's own lock consists of files. They stay if Snakemake is killed, and are removed here.

The settings of Snakemake are in profiles/default, which plain `snakemake` reads too.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import psutil
from rich.console import Console

from fedloom.cli.run.display import follow
from fedloom.cli.run.run_options import RunOptions
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_writable
from fedloom.common.locks import file_lock
from fedloom.machine.install import SNAKEFILE
from fedloom.machine.process_log import QUIET_VARIABLE
from fedloom.planning import paths, run_progress
from fedloom.planning.load_plan import CHANGES_KEY, LAUNCHER, ONLY_KEY, check_images, load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.records import summary_of_results, write_record

LOCK = Path(".fedloom.lock")
# seconds for Snakemake and its jobs to end after a signal
STOP_TIMEOUT = 60
WAITING = "another run is at work in this folder; waiting for it to end"


def snakemake_arguments(options: RunOptions) -> list[str]:
    """Return Snakemake's arguments for a study."""
    arguments = [*options.snakemake_options]
    if options.files:
        arguments += ["--configfile", *map(str, options.files)]

    # Snakemake takes all words after one --config, and forgets an earlier one
    overrides = {CHANGES_KEY: options.changes, ONLY_KEY: options.only}
    given = [f"{key}={json.dumps(words)}" for key, words in overrides.items() if words]
    if given:
        arguments += ["--config", *given]
    if options.cores:
        arguments += ["--cores", str(options.cores)]
    if options.dry:
        arguments += ["--dry-run"]
    return arguments


def plan_of_options(options: RunOptions) -> Plan:
    """Return the plan of a study that no option of Snakemake names.

    Raises:
        FedLoomError: the study is wrong.
    """
    return load_plan(options.files, {CHANGES_KEY: [*options.changes], ONLY_KEY: [*options.only]})


def plan_of_arguments(arguments: list[str]) -> tuple[Plan, bool]:
    """Return the plan of the study that Snakemake's arguments name, and True if no job is to run.

    Raises:
        FedLoomError: the arguments or the study are wrong.
    """
    # this import takes a second
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

    With `display`, the progress of the study is shown instead of Snakemake's lines.
    """
    console = Console(stderr=True)

    # On a terminal, Snakemake's lines would disturb the display. They are kept, and printed if
    # Snakemake fails.
    keeps_lines = display and console.is_terminal

    with (
        _file_for_lines(keeps_lines) as kept_lines,
        _forwarding_signals() as register,
        # in a process group, so that a signal to this process alone can be sent on to all jobs
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

        # say why Snakemake did not finish
        if status != 0 and signals:
            print("stopped; run the same command again to resume it", file=sys.stderr)
            status = -signals[0]
        elif status != 0 and kept_lines is not None:
            kept_lines.seek(0)
            print(kept_lines.read(), end="", file=sys.stderr)

    # if a signal ended it, return the status that a shell would return
    if status < 0:
        return 128 - status
    return status


def _file_for_lines(needed: bool) -> AbstractContextManager[IO[str] | None]:
    """Return a context with a file for Snakemake's lines, or with None if no file is needed."""
    if needed:
        return TemporaryFile("w+")
    return nullcontext()


def _command(arguments: list[str], display: bool) -> list[str]:
    """Return the command that starts Snakemake, on this folder's Snakefile or else on FedLoom's."""
    command = [sys.executable, "-m", "snakemake", *arguments]
    if not Path(SNAKEFILE.name).exists():
        command += ["--snakefile", str(SNAKEFILE)]
    if display:
        command += ["--logger", "fedloom"]
    return command


def _environment(display: bool) -> dict[str, str]:
    """Return the environment in which Snakemake and its jobs run."""
    environment = os.environ | {LAUNCHER: "1"}
    # a random.py in the current folder must not hide Python's
    environment["PYTHONSAFEPATH"] = "1"
    if display:
        environment[QUIET_VARIABLE] = "1"

    # Snakemake needs a folder for its cache, also if the home cannot be written to
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
    """Send SIGINT and SIGTERM on to Snakemake's process group.

    If the group does not end within STOP_TIMEOUT seconds, it is killed. The yielded function
    registers the process that leads the group. It returns a list, to which the signals that arrive
    are added.

    Snakemake is sent SIGINT once it runs jobs: then it ends its jobs and removes its lock, while
    SIGTERM would make it wait for its jobs. Before that it is sent SIGTERM, which ends it silently,
    while SIGINT would make it print a traceback.

    The handlers are set before the process starts. A shell lets the processes that it starts in the
    background ignore SIGINT. A process would inherit that, but it does not inherit a handler.
    """
    received = list[int]()
    processes = list[subprocess.Popen]()

    def forward(signal_number: int, _: object) -> None:
        received.append(signal_number)
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
        # a signal may have arrived while the process was started
        if received:
            process.terminate()
        return received

    handlers = {signal.SIGINT: forward, signal.SIGTERM: forward, signal.SIGALRM: kill}
    before = {
        signal_number: signal.signal(signal_number, handler)
        for signal_number, handler in handlers.items()
    }
    try:
        yield register
    finally:
        signal.alarm(0)
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def _handles_sigterm(process: int) -> bool:
    """Return True if a process has a handler for SIGTERM; Snakemake has one once it runs jobs."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        # this mask has a bit for each signal that has a handler
        if line.startswith("SigCgt:"):
            caught = int(line.split()[1], 16)
            return bool(caught >> (signal.SIGTERM - 1) & 1)
    raise AssertionError("/proc has the line SigCgt of every process")


def is_locked() -> bool:
    """Return True if this folder has Snakemake's lock: Snakemake is at work here, or was killed."""
    return any(Path(".snakemake/locks").glob("*"))


def remove_stale_lock(arguments: list[str]) -> None:
    """Remove the lock that a killed Snakemake left in this folder.

    Raises:
        FedLoomError: a Snakemake is at work in this folder, and this user may see its process.
    """
    here = str(Path.cwd())
    for process in psutil.process_iter(["cwd", "cmdline"]):
        words = process.info["cmdline"] or []
        names = [Path(word).name for word in words[:3]]
        if process.info["cwd"] == here and "snakemake" in names:
            raise FedLoomError(
                f"snakemake (process {process.pid}) is running here; wait for its end"
            )

    print("removing the lock of a run that was killed", file=sys.stderr)
    run_snakemake([*arguments, "--unlock"])


def exclusive_folder(folder: Path = Path()) -> AbstractContextManager[None]:
    """Return a context that holds a folder's lock; if another run has it, wait for its end.

    By default, it is this folder.
    """
    return file_lock(folder / LOCK, WAITING, partial(print, file=sys.stderr))


def run_study(options: RunOptions) -> int:
    """Run a study, and return Snakemake's exit status.

    Raises:
        FedLoomError: the study is wrong, is named twice, or cannot run in this folder.
    """
    # the study must be named once: Snakemake would take the last one and ignore the other
    naming = options.naming_option
    if naming and (options.files or options.changes or options.only):
        raise FedLoomError(
            f"{naming}: a study, --set or --only was given before `--` too; give only one of them"
        )

    # Snakemake's options may name the study, or say that no job is to run
    arguments = snakemake_arguments(options)
    if options.snakemake_options:
        study, runs_nothing = plan_of_arguments(arguments)
    else:
        study = plan_of_options(options)
        runs_nothing = options.dry
    if runs_nothing:
        return run_snakemake(arguments)

    check_writable(Path(paths.RESULTS))
    with exclusive_folder():
        return run_plan(study, arguments, options)


def run_plan(study: Plan, arguments: list[str], options: RunOptions) -> int:
    """Run a study in this folder, whose lock this process holds; return Snakemake's exit status.

    Args:
        study: the study that Snakemake's arguments name.
        arguments: Snakemake's arguments, by which jobs run.
        options: whether the report is written too, and else the command that writes it.

    Raises:
        FedLoomError: local images are missing, or a Snakemake is at work in this folder.
    """
    check_images(study)
    if is_locked():
        remove_stale_lock(arguments)

    run_progress.begin_run(study, arguments)
    try:
        # while this run holds the folder's lock, no other run changes the results
        status = run_snakemake(arguments, display=True)
        if status == 0:
            _finish(study, options)
    finally:
        run_progress.end_run()
    return status


def _finish(study: Plan, options: RunOptions) -> None:
    """Write the record of a study that has run, and print its results and its report's path.

    Without a report, the command that writes one is printed.
    """
    write_record(study)
    print(f"\n{summary_of_results(study)}")
    if options.reporting:
        # this import takes seconds
        from fedloom.report import page

        print(f"report  {page.write_page(study)}")
    else:
        print(f"report  made by: {options.report_command}")
