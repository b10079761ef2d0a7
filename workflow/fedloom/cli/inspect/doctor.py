"""`fedloom doctor`: check that this machine meets the requirements of jobs.

For each requirement that is not met, the command prints how to meet it.
"""

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import psutil
from rich.filesize import decimal

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_writable
from fedloom.common.temporary import is_abandoned, leftovers, size_in_bytes
from fedloom.machine import gpus, packages
from fedloom.planning import paths

# with fewer bytes of free disk than this, jobs may fail
LOW_DISK_BYTES = 1e9


def print_findings() -> int:
    """Print a line per finding, and how to fix what is wrong.

    Return 1 if anything is wrong, else 0.
    """
    status = 0
    for check in (_check_versions, _check_devices, _check_disk, _check_leftovers):
        try:
            for fact in check():
                print("ok   ", fact)
        except FedLoomError as error:
            print("FIX  ", error)
            status = 1
    return status


def _check_versions() -> Iterator[str]:
    """Yield the versions of Python and of jobs' packages; a missing package is a FedLoomError."""
    known = {
        "Python": python_version(),
        **packages.versions(),
        "Snakemake": version("snakemake"),
    }
    yield ", ".join(f"{name} {version}" for name, version in known.items())

    missing = [name for name in packages.PACKAGES if name not in known]
    if missing:
        raise FedLoomError(
            f"{', '.join(missing)}: must be installed; run `make venv` in a clone, or "
            "`pip install` elsewhere"
        )


def _check_devices() -> Iterator[str]:
    """Yield the cores, the memory and the GPUs; a GPU that torch cannot use is a FedLoomError."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total
    yield f"cores: {cores}, memory: {memory / 1e9:.1f} GB"

    visible = gpus.visible()
    fact = f"GPUs: {len(gpus.list_gpus())}; jobs may take {len(visible)}"
    if gpus.VISIBLE in os.environ:
        fact += f"; {gpus.VISIBLE} is '{os.environ[gpus.VISIBLE]}'"
    yield fact

    if visible:
        # imports torch, which takes seconds
        from fedloom.machine.device import check_gpus

        check_gpus()


def _check_disk() -> Iterator[str]:
    """Yield the free disk space for results; less than a gigabyte is a FedLoomError."""
    results = Path(paths.RESULTS)
    check_writable(results)

    # `results` may be a link to another disk
    folder = Path.cwd()
    if results.exists():
        folder = results.resolve()

    free = shutil.disk_usage(folder).free
    fact = f"disk of results: {free / 1e9:.1f} GB free in {folder}"
    if free < LOW_DISK_BYTES:
        raise FedLoomError(f"{fact}; make room, or jobs that cannot write will fail")
    yield fact


def _check_leftovers() -> Iterator[str]:
    """Yield the temporary files of jobs at work; files of killed jobs are a FedLoomError."""
    left = list[str]()
    for path in leftovers(Path(paths.RESULTS)):
        shown = f"{path} ({decimal(size_in_bytes(path))})"
        if is_abandoned(path):
            left.append(shown)
        else:
            yield f"being written, here or on another machine: {shown}"

    if left:
        raise FedLoomError(f"left by killed jobs: {', '.join(left)}; run `fedloom clean STUDY`")
    yield "killed jobs have left no files"
