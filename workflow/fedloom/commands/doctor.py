"""`fedloom doctor`: whether this machine has what jobs need, and what to do where it has not."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from platform import python_version
from typing import NamedTuple

import psutil

from fedloom.common import gpus
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_usable
from fedloom.study import paths

PACKAGES = ("torch", "torchvision", "timm", "open_clip_torch", "snakemake")
PLUGIN = "snakemake-executor-plugin-"
LITTLE = 1e9  # bytes of free disk, which few jobs fill


class Finding(NamedTuple):
    """A line of `fedloom doctor`: a fact and, where `well` is False, what to do."""

    text: str
    well: bool = True


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
            findings.append(Finding(str(error), well=False))
    for finding in findings:
        print("ok   " if finding.well else "MEND ", finding.text)
    sys.stdout.flush()
    sys.exit(any(not finding.well for finding in findings))


def versions() -> Iterator[Finding]:
    """Yield the versions of Python, of the libraries of jobs, and of Snakemake's executors."""
    known, missing = [f"Python {python_version()}"], list[str]()
    for package in PACKAGES:
        try:
            known.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    yield Finding(", ".join(known))
    if missing:
        text = f"{', '.join(missing)}: not installed; make venv installs what constraints.txt pins"
        yield Finding(text, well=False)
    plugins = {d.name.removeprefix(PLUGIN): d.version for d in distributions() if PLUGIN in d.name}
    executors = [f"{name} {number}" for name, number in sorted(plugins.items())]
    yield Finding(f"executors beside Snakemake's own: {', '.join(executors) or 'none'}")


def devices() -> Iterator[Finding]:
    """Yield the cores, the memory, and the GPUs that jobs may take."""
    memory = psutil.virtual_memory().total
    yield Finding(f"cores: {len(os.sched_getaffinity(0))}, memory: {memory / 1e9:.1f} GB")
    visible, shown = gpus.visible(), os.environ.get(gpus.VISIBLE)
    named = "" if shown is None else f"; {gpus.VISIBLE} is '{shown}'"
    yield Finding(f"GPUs: {len(gpus.installed())}, of which jobs may take {len(visible)}{named}")
    if visible:
        import torch  # takes seconds

        if not torch.cuda.is_available():
            text = f"torch {torch.__version__}: cannot use these GPUs; see whether it was built "
            yield Finding(f"{text}for CUDA, and for a CUDA that the driver knows", well=False)


def disk() -> Iterator[Finding]:
    """Yield the free space for results, which is too little below a gigabyte."""
    results = Path(paths.RESULTS)
    check_usable(results)
    folder = results if results.exists() else Path.cwd()
    free = shutil.disk_usage(folder).free
    text = f"disk of results: {free / 1e9:.1f} GB free in {folder.resolve()}"
    if free >= LITTLE:
        yield Finding(text)
    else:
        yield Finding(f"{text}; make room, or jobs that cannot write will fail", well=False)
