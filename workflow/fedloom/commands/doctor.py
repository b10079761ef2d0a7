"""`fedloom doctor`: whether this machine has what jobs need, and what to do where it has not."""

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from platform import python_version

import psutil

from fedloom.common import gpus, packages
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_usable
from fedloom.study import paths

PLUGIN = "snakemake-executor-plugin-"
LITTLE = 1e9  # bytes of free disk, which few jobs fill
Finding = tuple[str, bool]  # a fact with what to do, and True if nothing is to be done


def findings() -> int:
    """Print a line per finding, with what to do where something is wrong; return 1 if any is."""
    found = list[Finding]()
    for look in (versions, devices, disk):
        try:
            found += look()
        except FedLoomError as error:
            found.append((str(error), False))
    for text, well in found:
        print("ok   " if well else "MEND ", text)
    return int(not all(well for _, well in found))


def versions() -> Iterator[Finding]:
    """Yield the versions of Python, of the packages of jobs, and of Snakemake and its executors."""
    known = {"Python": python_version()} | packages.versions()
    yield ", ".join(f"{name} {version}" for name, version in known.items()), True
    if missing := [name for name in packages.PACKAGES if name not in known]:
        in_checkout = (ROOT / "Makefile").is_file()
        cure = "make venv" if in_checkout else f"pip install {' '.join(missing)}"
        yield f"{', '.join(missing)}: not installed; run: {cure}", False
    installed = {d.name: d.version for d in distributions()}
    own = [f"{k.removeprefix(PLUGIN)} {installed[k]}" for k in sorted(installed) if PLUGIN in k]
    executors = f"executors beside its own: {', '.join(own) or 'none'}"
    yield f"Snakemake {installed['snakemake']}, {executors}", True


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
