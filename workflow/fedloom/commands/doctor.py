"""`fedloom doctor`: whether this machine has what jobs need, and what to do where it has not."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from platform import python_version

import psutil

from fedloom.common import gpus
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_usable
from fedloom.study import paths

PACKAGES = ("torch", "torchvision", "timm", "open_clip_torch", "snakemake")
PLUGIN = "snakemake-executor-plugin-"
LITTLE = 1e9  # bytes of free disk, which few jobs fill
Finding = tuple[str, bool]  # a fact with what to do, and True if nothing is to be done


def add_to(commands: argparse._SubParsersAction) -> None:
    """Add `doctor` to the commands of `fedloom`."""
    about = "check versions, GPUs and disks of this machine"
    command = commands.add_parser("doctor", help=about, description=run.__doc__)
    command.set_defaults(function=run)


def run(_: argparse.Namespace) -> None:
    """Print a line per finding, with what to do where something is wrong; status 1 if any is."""
    findings = list[Finding]()
    for look in (versions, devices, disk):
        try:
            findings += look()
        except FedLoomError as error:
            findings.append((str(error), False))
    for text, well in findings:
        print("ok   " if well else "MEND ", text)
    sys.stdout.flush()
    sys.exit(not all(well for _, well in findings))


def versions() -> Iterator[Finding]:
    """Yield the versions of Python, of the libraries of jobs, and of Snakemake's executors."""
    installed = {d.name: d.version for d in distributions()}
    known = [f"{name} {installed[name]}" for name in PACKAGES if name in installed]
    yield ", ".join([f"Python {python_version()}", *known]), True
    if missing := ", ".join(name for name in PACKAGES if name not in installed):
        yield f"{missing}: not installed; make venv installs what constraints.txt pins", False
    own = [f"{k.removeprefix(PLUGIN)} {installed[k]}" for k in sorted(installed) if PLUGIN in k]
    yield f"executors beside Snakemake's own: {', '.join(own) or 'none'}", True


def devices() -> Iterator[Finding]:
    """Yield the cores, the memory, and the GPUs that jobs may take."""
    memory = psutil.virtual_memory().total
    yield f"cores: {len(os.sched_getaffinity(0))}, memory: {memory / 1e9:.1f} GB", True
    visible, shown = gpus.visible(), os.environ.get(gpus.VISIBLE)
    named = "" if shown is None else f"; {gpus.VISIBLE} is '{shown}'"
    yield f"GPUs: {len(gpus.installed())}; jobs may take {len(visible)}{named}", True
    if visible:
        from fedloom.common.device import check_gpus  # imports torch, which takes seconds

        try:
            check_gpus()
        except FedLoomError as error:
            yield str(error), False


def disk() -> Iterator[Finding]:
    """Yield the free space for results, which is too little below a gigabyte."""
    results = Path(paths.RESULTS)
    check_usable(results)
    folder = results if results.exists() else Path.cwd()
    free = shutil.disk_usage(folder).free
    cure = "" if free >= LITTLE else "; make room, or jobs that cannot write will fail"
    yield f"disk of results: {free / 1e9:.1f} GB free in {folder.resolve()}{cure}", not cure
