"""Write and check receipts: small JSON files that each describe a large file.

Snakemake compares a receipt instead of the large file.
"""

import hashlib
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.common.files import canonical, read_json, write_text
from fedloom.common.json_types import JsonDict


def digest(value: object) -> str:
    """Return the sha256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def receipt_path(path: Path) -> Path:
    """Return the path of the receipt of a file."""
    return path.with_suffix(".json")


def write_sealed(file: Path, facts: JsonDict) -> None:
    """Write facts as JSON, with a digest of all of them."""
    write_text(file, canonical(facts | {"receipt": digest(facts)}) + "\n")


def read_sealed(file: Path) -> JsonDict:
    """Return the facts that `write_sealed` wrote; raise a FedLoomError if the file was changed."""
    facts = read_json(file)
    if facts.pop("receipt", None) != digest(facts):
        raise FedLoomError(
            f"{file}: changed since it was written, or of another version; delete it and run again"
        )
    return facts


def write_receipt(path: Path, **facts: object) -> None:
    """Write the receipt of `path` beside it: the file's sha256, `facts`, and a digest of both."""
    write_sealed(receipt_path(Path(path)), {"sha256": sha256(path), **facts})


def read_receipt(path: Path) -> JsonDict:
    """Return the facts of the receipt of `path`, without reading `path` itself."""
    return read_sealed(receipt_path(Path(path)))


def check_receipt(path: Path) -> JsonDict:
    """Return the facts of the receipt of `path`.

    Raises:
        FedLoomError: `path` is missing, or is not the file that its receipt describes.
    """
    facts = read_receipt(path)
    if not Path(path).is_file() or sha256(path) != facts.get("sha256"):
        raise changed_error(path)
    return facts


def changed_error(path: Path) -> FedLoomError:
    """Return the error about a file that is missing, or was changed after its receipt was written.

    If the file is made again, all results that follow from it are made again too, even if the new
    file is the same: Snakemake decides which jobs run before it knows what they write.
    """
    return FedLoomError(
        f"{path}: not what its receipt describes; delete it and run again, which also makes again "
        "the results that follow from it"
    )
