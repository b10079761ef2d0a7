"""Give a job that asks for a GPU a device that no other job of this user and machine uses.

Rules with the resource `gpu` hand it to their jobs in FEDLOOM_GPU. A job locks the first free
device that CUDA_VISIBLE_DEVICES shows, or waits for one, and narrows the variable to it before
torch starts CUDA. The lock ends with the process.
"""

import logging
import os
import re
import shutil
import stat
import subprocess
import time
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir

from filelock import FileLock, Timeout

from fedloom.common.errors import FedLoomError, one_line
from fedloom.machine.process_log import JOB_IDS

log = logging.getLogger(__name__)

# the variable with the number of GPUs that this job asks for: 0 or 1
ASKED = "FEDLOOM_GPU"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# seconds between two attempts where all devices are taken
PAUSE = 1.0

# the lock of this process's device, which is kept until the process ends
_taken: list[FileLock] = []


def acquire_gpu() -> str | None:
    """Take a device until this process ends, if it asks for one, and hide all others."""
    # a process that this one starts shares its device, and asks for none
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

    # hide all others, by an index as nvidia-smi counts where there is no UUID
    os.environ[VISIBLE] = name
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    log.debug("took GPU %s", name)
    return name


def _first_free(names: list[str]) -> str | None:
    """Lock the first free device and return its name; None where all are taken."""
    # what a scheduler shows a job is its own: jobs of two allocations do not compete
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
    """Check that a folder in a place where all users write is this user's alone.

    Another user could have made it first, or a link, and hold or remove the locks in it.
    """
    facts = folder.lstat()
    private = stat.S_ISDIR(facts.st_mode) and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not private or facts.st_uid != os.getuid():
        raise FedLoomError(
            f"{folder}: must be a folder that user {os.getuid()} alone can write to, got one of "
            f"user {facts.st_uid} ({stat.filemode(facts.st_mode)}); remove it, or set TMPDIR"
        )


def visible() -> list[str]:
    """Return the devices that CUDA_VISIBLE_DEVICES shows, by their UUIDs.

    Like CUDA, end at the first name of no device, such as Slurm's NoDevFiles.
    Where nvidia-smi is missing, an index stands in for the UUID.
    """
    # without the variable, all of them
    words = os.environ.get(VISIBLE)
    if words is None:
        devices = list[str]()
        for of_gpu in installed():
            devices += of_gpu
        return devices

    # words that may be names of devices: an index, or a UUID
    names = [*takewhile(re.compile(r"\d+$|GPU-|MIG-").match, map(str.strip, words.split(",")))]
    if not names:
        return []

    # nobody knows how many GPUs there are where nvidia-smi is missing
    gpus = installed()
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


def installed() -> list[list[str]]:
    """Return the UUIDs that CUDA can use of every GPU, its own or its MIG slices'."""
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    if done.returncode and "No devices" not in done.stdout + done.stderr:
        reason = one_line(done.stderr or done.stdout) or f"exit status {done.returncode}"
        raise FedLoomError(
            f"nvidia-smi -L: {reason}; repair the driver, or set {VISIBLE}= to compute on CPU cores"
        )

    # the lines of each GPU: its own UUID, and those of its slices, which hide it
    gpus = re.split(r"^GPU", done.stdout, flags=re.M)[1:]
    uuids = [re.findall(r"\(UUID: ([^)]+)\)", gpu) for gpu in gpus]
    return [found[1:] or found for found in uuids]
