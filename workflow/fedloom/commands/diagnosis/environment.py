"""What jobs will find here: versions, cores and memory, GPUs, room on disks."""

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from platform import python_version

import psutil

from fedloom.commands.doctor import Finding
from fedloom.common import gpus, scratch
from fedloom.common.folders import check_usable
from fedloom.study import paths

PACKAGES = ("torch", "torchvision", "timm", "open_clip_torch", "snakemake")
PLUGIN = "snakemake-executor-plugin-"
LITTLE = 1e9  # bytes of free disk, which few jobs fill


def versions() -> Iterator[Finding]:
    """Yield the versions of Python, of what jobs compute with, and of Snakemake's executors."""
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


def computing() -> Iterator[Finding]:
    """Yield the cores that this process may run on, and the machine's memory."""
    yield Finding(f"cores: {len(os.sched_getaffinity(0))}")
    yield Finding(f"memory: {_gigabytes(psutil.virtual_memory().total)}")


def graphics() -> Iterator[Finding]:
    """Yield the GPUs, and which of them jobs may still take.

    Raises:
        FedLoomError: nvidia-smi fails.
    """
    installed, visible = gpus.installed(), gpus.visible()
    if not installed and not visible:
        yield Finding("GPUs: none")
        return
    models = ", ".join(gpu.model for gpu in installed) or "nvidia-smi is missing"
    shown = os.environ.get(gpus.VISIBLE)
    named = "" if shown is None else f" ({gpus.VISIBLE} is '{shown}')"
    free = sum(gpus.is_free(device) for device in visible)
    yield Finding(
        f"GPUs: {models}; jobs may take {len(visible)} devices{named}, of which {free} are free"
    )
    if visible:
        import torch  # takes seconds

        if not torch.cuda.is_available():
            text = f"torch {torch.__version__}: cannot use these GPUs; see whether it was built "
            yield Finding(f"{text}for CUDA, and for a CUDA that the driver knows", well=False)


def disk() -> Iterator[Finding]:
    """Yield the free room of results and of the scratch folder.

    Raises:
        FedLoomError: there can be no folder of results here, or there is no scratch folder.
    """
    results = Path(paths.RESULTS)
    check_usable(results)
    yield _room("disk of results", results if results.exists() else Path.cwd())
    copies = scratch.folder()
    if copies is not None:
        yield _room(f"disk of {scratch.VARIABLE}", copies.parent)


def _room(what: str, folder: Path) -> Finding:
    """Return how much a folder's disk has left, which is too little below a gigabyte."""
    free = shutil.disk_usage(folder).free
    text = f"{what}: {_gigabytes(free)} free in {folder.resolve()}"
    if free >= LITTLE:
        return Finding(text)
    return Finding(f"{text}; make room, or jobs that cannot write will fail", well=False)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
