"""Files that are either whole or absent, and the digests that tie them together."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.errors import FedLoomError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, renamed to it only when the block succeeds."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    yield temporary
    temporary.replace(path)


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


def write_receipt(path: Path, of: Path, **facts: object) -> None:
    """Write the small JSON that Snakemake tracks in place of the large file `of`."""
    write_text(path, canonical({"sha256": sha256(of), **facts}) + "\n")


def check_receipt(path: Path, of: Path) -> dict:
    """Return the receipt's facts.

    Raises:
        FedLoomError: the file is not the one that the receipt was written for.
    """
    facts = json.loads(Path(path).read_text())
    if sha256(of) != facts["sha256"]:
        raise FedLoomError(
            f"{of}: truncated or changed since it was written (its sha256 is not the one in "
            f"{Path(path).name}); delete it and run again"
        )
    return facts
