"""Give a job that asks for a GPU one that no other job of this machine uses.

Rules with the resource `gpu` hand it to their jobs in FEDLOOM_GPU. A job that asks picks the first
free one of the devices that CUDA_VISIBLE_DEVICES shows it (all, where that is not set), and narrows
the variable to it before torch starts CUDA. A device is taken by binding a name of the kernel's own
(an abstract socket): it needs no file or permission, holds for jobs of all users and folders, and
is free again when the job ends, however it ends.

Where no device is free, a job waits: whoever holds one, an orphan of a killed Snakemake or another
study, ends by itself, and an error would fail a study that needs nothing but time.
"""

import errno
import logging
import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass

from fedloom.common.errors import FedLoomError
from fedloom.common.logs import JOB_IDS

log = logging.getLogger(__name__)

ASKED = "FEDLOOM_GPU"  # how many GPUs this job asks for: 0 or 1
VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT = 60  # seconds for nvidia-smi to answer
PAUSE = 1.0  # seconds between two looks at devices that are all taken

_taken: list[socket.socket] = []  # what holds this process's device


@dataclass(frozen=True)
class GPU:
    """A GPU of this machine.

    Attributes:
        devices: UUIDs of what CUDA can use: the GPU itself, or each of its MIG slices.
    """

    model: str
    uuid: str
    devices: tuple[str, ...]


def take() -> str | None:
    """Take a device for this process until it ends, if it asks for one, and show CUDA no other.

    Returns:
        The device as CUDA_VISIBLE_DEVICES names it; None if this process does not ask.

    Raises:
        FedLoomError: it asks for several, or no device is visible.
    """
    asked = os.environ.pop(ASKED, "0")  # what this process starts shares its device
    if asked == "0":
        return None
    if asked != "1":
        raise FedLoomError(f"resource gpu: {asked}: a job computes on one GPU; ask for 0 or 1")
    devices = visible()
    if not devices:
        shown = os.environ.get(VISIBLE)
        reason = "nvidia-smi lists none" if shown is None else f"{VISIBLE} is '{shown}'"
        raise FedLoomError(f"resource gpu: 1: no GPU is visible here ({reason}); ask for 0")
    name = _first_free(devices)
    if name is None:
        log.info(
            "GPU %s: taken by other jobs; waiting for one (with --resources gpu=%d, no more jobs "
            "are started than there are GPUs)",
            ", ".join(devices.values()),
            len(devices),
        )
    while name is None:
        time.sleep(PAUSE)
        name = _first_free(devices)
    os.environ[VISIBLE] = name
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # indices as nvidia-smi counts
    log.debug("on GPU %s", name)
    return name


def _first_free(devices: dict[str, str]) -> str | None:
    """Take the first device that is free and return its name; None where all are taken."""
    for device, name in devices.items():
        lock = _lock(device)
        if lock is not None:
            _taken.append(lock)
            return name
    return None


def is_free(device: str) -> bool:
    """Return True if no job has taken the device."""
    lock = _lock(device)
    if lock is None:
        return False
    lock.close()
    return True


def _lock(device: str) -> socket.socket | None:
    """Return a socket that holds the device until it is closed; None if another process has one.

    Jobs in different allocations of a scheduler do not compete: what each is shown is its own.
    """
    allocation = next((os.environ[name] for name in JOB_IDS if name in os.environ), "")
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0fedloom-gpu-{allocation}-{device}")
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return lock


def visible() -> dict[str, str]:
    """Return the devices that CUDA_VISIBLE_DEVICES shows, or all of them where it is not set.

    Like CUDA, read its names up to the first one that is no device.

    Returns:
        {UUID: name in the variable}; in place of a UUID the name, where nvidia-smi is missing.
    """
    gpus = installed()
    names = os.environ.get(VISIBLE)
    if names is None:
        return {device: device for gpu in gpus for device in gpu.devices}
    devices: dict[str, str] = {}
    for name in (name.strip() for name in names.split(",")):
        device = _uuid(name, gpus)
        if device is None:
            break
        devices.setdefault(device, name)
    return devices


def _uuid(name: str, gpus: list[GPU]) -> str | None:
    """Return the UUID of the device that CUDA uses for a name; None if there is no such device."""
    if name.isdecimal():
        if not gpus:
            return name
        return gpus[int(name)].devices[0] if int(name) < len(gpus) else None
    if not name.startswith(("GPU-", "MIG-")):
        return None
    # the beginning of a UUID is enough for CUDA; of a GPU in slices it uses the first
    known = {device: device for gpu in gpus for device in gpu.devices}
    known |= {gpu.uuid: gpu.devices[0] for gpu in gpus}
    matching = [device for uuid, device in known.items() if uuid.startswith(name)]
    return matching[0] if len(matching) == 1 else name


def installed() -> list[GPU]:
    """Return the GPUs of this machine in the order of nvidia-smi; none where it is missing.

    Raises:
        FedLoomError: nvidia-smi is there, and fails or does not answer.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "-L"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise FedLoomError(f"nvidia-smi -L: no answer in {TIMEOUT} s") from None
    if done.returncode and "No devices" not in done.stdout + done.stderr:
        reason = " ".join((done.stderr or done.stdout).split())
        raise FedLoomError(f"nvidia-smi -L: {reason or f'exit status {done.returncode}'}")
    gpus: list[GPU] = []
    for line in done.stdout.splitlines():
        uuid = re.search(r"\(UUID: ((GPU|MIG)-[^)]+)\)", line)
        if uuid and uuid[2] == "GPU":
            model = line[: uuid.start()].partition(":")[2].strip()
            gpus.append(GPU(model, uuid[1], (uuid[1],)))
        elif uuid:  # a slice of the GPU above it
            gpu = gpus.pop()
            slices = gpu.devices if gpu.devices != (gpu.uuid,) else ()
            gpus.append(GPU(gpu.model, gpu.uuid, (*slices, uuid[1])))
    return gpus
