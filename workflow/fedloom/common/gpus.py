"""Give a job that asks for a GPU a device that no other job of this user and machine uses.

Rules with the resource `gpu` hand it to their jobs in FEDLOOM_GPU. A job locks the first free
device that CUDA_VISIBLE_DEVICES shows (of all, where it is not set), and narrows the variable to it
before torch starts CUDA. The lock ends with the process, however that ends. Where no device is free
the job waits: an error would fail a study that needs nothing but time.
"""

import logging
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import gettempdir

from filelock import FileLock, Timeout

from fedloom.common.errors import FedLoomError, one_line
from fedloom.common.logs import JOB_IDS

log = logging.getLogger(__name__)

ASKED = "FEDLOOM_GPU"  # number of GPUs that this job asks for: 0 or 1
VISIBLE = "CUDA_VISIBLE_DEVICES"
PAUSE = 1.0  # seconds between two attempts where all devices are taken

_taken: list[FileLock] = []  # the lock of this process's device


def take() -> str | None:
    """Take a device for this process until it ends, if it asks for one, and hide all others.

    Return it as CUDA_VISIBLE_DEVICES names it; None if this process does not ask.
    """
    asked = os.environ.pop(ASKED, "0")  # what this process starts shares its device
    if asked == "0":
        return None
    devices = visible()
    if asked != "1" or not devices:
        shown = os.environ.get(VISIBLE, "not set")
        raise FedLoomError(
            f"resource gpu must be 0, or 1 where a GPU is visible, got {asked} and {len(devices)} "
            f"visible ones ({VISIBLE}: {shown!r}); ask for 0"
        )
    name = _first_free(devices)
    if name is None:
        log.info("GPU %s: taken by other jobs; waiting for one", ", ".join(devices.values()))
    while name is None:
        time.sleep(PAUSE)
        name = _first_free(devices)
    os.environ[VISIBLE] = name
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # indices as nvidia-smi counts
    log.debug("took GPU %s", name)
    return name


def _first_free(devices: dict[str, str]) -> str | None:
    """Lock the first free device and return its name; None where all are taken."""
    # what a scheduler shows a job is its own: jobs of two allocations do not compete
    allocation = next((os.environ[name] for name in JOB_IDS if name in os.environ), "")
    folder = Path(gettempdir()) / f"fedloom-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for device, name in devices.items():
        file = folder / re.sub(r"[^\w-]", "_", f"gpu-{allocation}-{device}")
        lock = FileLock(file, fallback_to_soft=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        _taken.append(lock)
        return name
    return None


def visible() -> dict[str, str]:
    """Return the devices that CUDA_VISIBLE_DEVICES shows: {UUID: name in the variable}.

    Like CUDA, ignore the names after the first that is not a device. Where nvidia-smi is missing,
    an index stands in for the UUID.
    """
    names = os.environ.get(VISIBLE)
    if names is not None and not names.strip():
        return {}
    gpus = installed()
    if names is None:
        return {device: device for devices in gpus for device in devices}
    found: dict[str, str] = {}
    for name in map(str.strip, names.split(",")):
        device = name
        if name.isdecimal() and gpus:
            if int(name) >= len(gpus):
                break
            device = gpus[int(name)][0]
        elif not name.isdecimal() and not name.startswith(("GPU-", "MIG-")):
            break
        found.setdefault(device, name)
    return found


def installed() -> list[list[str]]:
    """Return the UUIDs that CUDA can use of every GPU, its own or its MIG slices'.

    They are in the order of nvidia-smi; there are none where it is missing.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    if done.returncode and "No devices" not in done.stdout + done.stderr:
        reason = one_line(done.stderr or done.stdout) or f"exit status {done.returncode}"
        cure = f"repair the driver, or set {VISIBLE}= to compute on CPU cores"
        raise FedLoomError(f"nvidia-smi -L: {reason}; {cure}")
    uuids = [
        re.findall(r"\(UUID: ([^)]+)\)", gpu) for gpu in re.split(r"^GPU", done.stdout, flags=re.M)
    ]
    return [found[1:] or found for found in uuids[1:]]
