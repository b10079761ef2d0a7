"""Give a job that asks for a GPU a device that no other job of this user and machine uses.

A rule with the resource `gpu` hands its value to the job in the variable FEDLOOM_GPU. The job locks
the first free device that CUDA_VISIBLE_DEVICES shows, or waits for one. It sets this variable to
the locked device before torch starts CUDA. The lock ends with the process.
"""

import logging
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from filelock import FileLock, Timeout

from fedloom.common.errors import FedLoomError, one_line
from fedloom.machine.process_log import JOB_IDS

log = logging.getLogger(__name__)

# the variable with the number of GPUs that this job asks for: 0 or 1
ASKED = "FEDLOOM_GPU"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# matches a word of that variable if it names a device: an index, or the UUID of a GPU or MIG slice
DEVICE_NAME = re.compile(r"\d+$|GPU-|MIG-")
# seconds between two attempts to take a device
PAUSE = 1.0

# the lock of this process's device, which is kept until the process ends
_taken: list[FileLock] = []


def acquire_gpu() -> str | None:
    """Take a device until this process ends, if FEDLOOM_GPU asks for one, and hide all others.

    Return the name of the device: its UUID, or its index without nvidia-smi. Return None if no
    device is asked for.

    Raises:
        FedLoomError: FEDLOOM_GPU is neither 0 nor 1, or it is 1 and no GPU is visible.
    """
    # the variable is removed: a process that this one starts shares its device, and asks for none
    asked = os.environ.pop(ASKED, "0")
    if asked == "0":
        return None

    names = visible()
    if asked != "1" or not names:
        shown = os.environ.get(VISIBLE, "not set")
        raise FedLoomError(
            f"resource gpu must be 0, or 1 where a GPU is visible, got {asked} and {len(names)} "
            f"visible ones ({VISIBLE}: {shown!r}); ask for 0"
        )

    # wait until a device is free
    if (name := _first_free(names)) is None:
        log.info("GPU %s: taken by other jobs; waiting for one", ", ".join(names))
    while name is None:
        time.sleep(PAUSE)
        name = _first_free(names)

    # hide all others; if the name is an index, CUDA must count devices as nvidia-smi does
    os.environ[VISIBLE] = name
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    log.debug("took GPU %s", name)
    return name


def _first_free(names: list[str]) -> str | None:
    """Lock the first free device and return its name; return None if all are taken."""
    # a scheduler gives each allocation devices of its own, so two allocations do not share a lock
    allocation = next((os.environ[name] for name in JOB_IDS if name in os.environ), "")

    # all jobs of this user and machine find the locks here
    folder = Path(gettempdir()) / f"fedloom-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_own(folder)

    for name in names:
        file = folder / re.sub(r"[^\w-]", "_", f"gpu-{allocation}-{name}")
        lock = FileLock(file, fallback_to_soft=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        _taken.append(lock)
        return name
    return None


def _check_own(folder: Path) -> None:
    """Raise a FedLoomError unless a folder belongs to this user, and no other can write to it.

    It lies where all users may write. Another user could have made the folder first, or a link in
    its place, and could then hold or remove the locks in it.
    """
    facts = folder.lstat()
    private = stat.S_ISDIR(facts.st_mode) and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not private or facts.st_uid != os.getuid():
        raise FedLoomError(
            f"{folder}: must be a folder that user {os.getuid()} alone can write to, got one of "
            f"user {facts.st_uid} ({stat.filemode(facts.st_mode)}); remove it, or set TMPDIR"
        )


def visible() -> list[str]:
    """Return the UUIDs of the devices that CUDA_VISIBLE_DEVICES shows.

    Like CUDA, stop at the first word that names no device, such as Slurm's NoDevFiles. If
    nvidia-smi is missing, return an index as it is.
    """
    # without the variable, all devices are visible
    words = os.environ.get(VISIBLE)
    if words is None:
        devices = list[str]()
        for of_gpu in list_gpus():
            devices += of_gpu
        return devices

    # the words before the first one that cannot name a device
    names = list[str]()
    for word in words.split(","):
        name = word.strip()
        if not DEVICE_NAME.match(name):
            break
        names.append(name)
    if not names:
        return []

    # without nvidia-smi, indices can neither be checked nor replaced
    gpus = list_gpus()
    if not gpus:
        return names

    devices = list[str]()
    for name in names:
        if not name.isdecimal():
            devices.append(name)
            continue
        number = int(name)
        if number >= len(gpus):
            break
        devices.append(gpus[number][0])
    return devices


def list_gpus() -> list[list[str]]:
    """Return, for every GPU, the UUIDs that CUDA can use: its own, or those of its MIG slices.

    Return no GPU if nvidia-smi is missing; raise a FedLoomError if nvidia-smi fails.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    if done.returncode and "No devices" not in done.stdout + done.stderr:
        reason = one_line(done.stderr or done.stdout) or f"exit status {done.returncode}"
        raise FedLoomError(
            f"nvidia-smi -L: {reason}; repair the driver, or set {VISIBLE}= to compute on CPU cores"
        )

    # the UUIDs of each GPU: first its own, then those of its slices, which replace its own
    gpus = re.split(r"^GPU", done.stdout, flags=re.M)[1:]
    uuids = [re.findall(r"\(UUID: ([^)]+)\)", gpu) for gpu in gpus]
    return [found[1:] or found for found in uuids]


def peak_gpu_megabytes() -> float | None:
    """Return the most memory that this process had on its GPU; None if it computed on none."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.max_memory_allocated() / 1e6
