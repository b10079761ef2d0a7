"""Files that are either whole or absent, and the digests that tie them together."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.errors import FedLoomError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, renamed to it only when the block succeeds.

    The name is this process's own: a job that outlived its Snakemake may be writing the same file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


def canonical(value: object) -> str:
    """JSON with one spelling: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """sha256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def sha256(path: Path) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json(path: Path) -> dict:
    """A JSON file of ours.

    Raises:
        FedLoomError: missing, empty or truncated.
    """
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        line = f"{path}: not a whole JSON file ({error}); delete it and run again"
        raise FedLoomError(line) from None


def write_receipt(path: Path, receipt: Path | None = None, **facts: object) -> None:
    """Describe the large file `path` in a small JSON, which Snakemake tracks in its place.

    Args:
        receipt: default: `path` with the suffix .json.
    """
    target = receipt or Path(path).with_suffix(".json")
    write_text(target, canonical({"sha256": sha256(path), **facts}) + "\n")


def check_receipt(path: Path, receipt: Path | None = None) -> dict:
    """The facts of the receipt of `path`.

    Raises:
        FedLoomError: the file is not the one that the receipt was written for.
    """
    receipt = receipt or Path(path).with_suffix(".json")
    facts = read_json(receipt)
    if not Path(path).is_file() or sha256(path) != facts.get("sha256"):
        raise FedLoomError(
            f"{path}: missing, truncated or changed since it was written (its sha256 is not that "
            f"in {receipt.name}); delete it and run again"
        )
    return facts
