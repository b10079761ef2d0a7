"""`fedloom doctor`: whether this machine has what jobs need, and what to do where it has not."""

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import psutil
from rich.filesize import decimal

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_usable
from fedloom.common.temporary import abandoned, leftovers, size_of
from fedloom.machine import gpus, packages
from fedloom.planning import paths

LITTLE = 1e9  # bytes of free disk, which few jobs fill


def findings() -> int:
    """Print a line per finding, with what to do where something is wrong; return 1 if any is."""
    status = 0
    for look in (versions, devices, disk, killed):
        try:
            for fact in look():
                print("ok   ", fact)
        except FedLoomError as error:
            print("MEND ", error)
            status = 1
    return status


def versions() -> Iterator[str]:
    """Yield the versions of Python and of what jobs need; raise an error if one is missing."""
    known = {"Python": python_version()} | packages.versions() | {"Snakemake": version("snakemake")}
    yield ", ".join(f"{name} {version}" for name, version in known.items())
    if missing := [name for name in packages.PACKAGES if name not in known]:
        cure = "`make venv` in a clone, or `pip install` them"
        raise FedLoomError(f"{', '.join(missing)}: not installed; run {cure}")


def devices() -> Iterator[str]:
    """Yield the cores, the memory, and the GPUs, which torch must be able to use."""
    memory = psutil.virtual_memory().total
    yield f"cores: {len(os.sched_getaffinity(0))}, memory: {memory / 1e9:.1f} GB"
    visible, shown = gpus.visible(), os.environ.get(gpus.VISIBLE)
    named = "" if shown is None else f"; {gpus.VISIBLE} is '{shown}'"
    yield f"GPUs: {len(gpus.installed())}; jobs may take {len(visible)}{named}"
    if visible:
        from fedloom.machine.device import check_gpus  # imports torch, which takes seconds

        check_gpus()


def disk() -> Iterator[str]:
    """Yield the free space for results, which is too little below a gigabyte."""
    check_usable(results := Path(paths.RESULTS))
    folder = results.resolve() if results.exists() else Path.cwd()
    free = shutil.disk_usage(folder).free
    fact = f"disk of results: {free / 1e9:.1f} GB free in {folder}"
    if free < LITTLE:
        raise FedLoomError(f"{fact}; make room, or jobs that cannot write will fail")
    yield fact


def killed() -> Iterator[str]:
    """Yield what jobs at work are writing; what killed jobs left is an error."""
    left = list[str]()
    for path in leftovers(Path(paths.RESULTS)):
        shown = f"{path} ({decimal(size_of(path))})"
        if abandoned(path):
            left.append(shown)
        else:
            yield f"being written, here or on another machine: {shown}"
    if left:
        raise FedLoomError(f"left by killed jobs: {', '.join(left)}; run `fedloom clean STUDY`")
    yield "nothing is left of killed jobs"
