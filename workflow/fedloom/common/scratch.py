"""Large inputs of a job, read from a disk of the machine it runs on where one is named.

Training reads images and caches in random order, every round, which a shared file system serves
slowly, and many jobs at once slower still. With the environment variable FEDLOOM_SCRATCH naming a
folder on a disk of each node (`/scratch`, or `$TMPDIR`, which is filled in on the node), the first
job on a node copies what it reads there, and others find the copy. It is named by its digest. Such
a disk is everybody's, so copies lie in a folder of this user's to which nobody else can write.
"""

import logging
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from fedloom.common.errors import FedLoomError
from fedloom.common.io import replacing
from fedloom.common.locks import held
from fedloom.common.receipts import changed, check_receipt, read_receipt, sha256

log = logging.getLogger(__name__)

VARIABLE = "FEDLOOM_SCRATCH"
PIECE = 1 << 20  # bytes copied at once


def nearest(path: Path, whole: bool = True) -> tuple[Path, dict[str, Any]]:
    """Return where to read a file that has a receipt, and the facts of its receipt.

    The file that is returned is the one that the receipt was written for: `path` itself, or its
    copy in the folder that FEDLOOM_SCRATCH names.

    Args:
        whole: verify all of the file; False where its reader verifies what it reads.

    Raises:
        FedLoomError: the file is not what its receipt says, or copies cannot be kept in the folder
            that FEDLOOM_SCRATCH names, see `folder`.
    """
    copies = folder(make=True)
    if copies is None:
        return path, check_receipt(path) if whole else read_receipt(path)
    facts = read_receipt(path)
    digest = facts["sha256"]
    copy = copies / f"{digest}{path.suffix}"

    def is_good() -> bool:
        return copy.is_file() and (not whole or sha256(copy) == digest)

    if not is_good():
        with held(copy.with_suffix(".lock"), f"{copy}: another job is copying it", log.info):
            if not is_good():
                _copy(path, copy, digest)
    return copy, facts


def folder(make: bool = False) -> Path | None:
    """Return this user's folder for copies on this machine, or None if none is wanted.

    Nobody else may put a link into it, by which a job would write elsewhere.

    Args:
        make: make it if it is not there.

    Raises:
        FedLoomError: the variable names no folder, or others can write to this user's.
    """
    named = os.environ.get(VARIABLE, "")
    if not named:
        return None
    top = Path(os.path.expandvars(named)).expanduser()
    if not top.is_dir():
        raise FedLoomError(f"{VARIABLE}: {top} is no folder on this machine; name one, or unset it")
    copies = top / f"fedloom-{os.getuid()}"
    if make and not os.path.lexists(copies):
        try:
            copies.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise FedLoomError(
                f"{VARIABLE}: the folder {copies} cannot be made ({error.strerror}); name a folder "
                "that you can write to, or unset it"
            ) from None
    if os.path.lexists(copies):
        status = copies.lstat()
        own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise FedLoomError(
                f"{VARIABLE}: {copies} must be a folder of yours, to which nobody else can write; "
                "remove it, or name another folder"
            )
    return copies


def _copy(path: Path, copy: Path, digest: str) -> None:
    """Copy a file, whole or not at all.

    Raises:
        FedLoomError: it has another digest than `digest`, or its copy cannot be written.
    """
    log.info("copying %s to %s", path, copy)
    with replacing(copy) as temporary:
        try:
            flags = os.O_WRONLY | os.O_NOFOLLOW
            with path.open("rb") as stored, os.fdopen(os.open(temporary, flags), "wb") as copied:
                shutil.copyfileobj(stored, copied, PIECE)
        except FileNotFoundError as error:
            if error.filename != str(path):
                raise
            raise changed(path) from None
        if sha256(temporary) != digest:
            raise changed(path)
