"""Get a data set's files as its recipe says: torchvision, Hugging Face's hub, archives, or by hand.

An archive lies in <root>/.downloads while it is fetched. Once it is in place or unpacked, a record
with its address, size and sha256 remains there, by which a second call knows that nothing is left
to do.
"""

import hashlib
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from filelock import FileLock

from fedloom.common.checkout import resource
from fedloom.common.errors import FedLoomError
from fedloom.common.io import canonical, read_json, write_text
from fedloom.common.logs import download_progress
from fedloom.config.recipes import Recipe, find, folder_of
from fedloom.data.archives import unpack
from fedloom.data.entries import dataset_entry
from fedloom.data.sources import read

log = logging.getLogger(__name__)

FOLDER = ".downloads"
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")
TRIES = 5  # in a row that bring no more than an earlier one
PAUSE = 2.0  # seconds before the second try, and twice as long before every further one
TIMEOUT = 60.0  # seconds without an answer
HERE = ("127.0.0.1", "localhost", "::1")  # this machine, to which the way is short
PIECE = 1 << 20  # bytes written at once


def get(recipe: Recipe, root: str | None = None) -> list[str]:
    """Bring a data set's files below the root, and return the steps that a person must do.

    Files that are there already are not fetched again. The parts of a data set of several are got
    one by one. The root is the recipe's by default.
    """
    root = root or recipe.root
    folder, how = resource(root), recipe.get.plain
    if how.keys() - {"manual"}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedLoomError(f"{recipe.name}: root {folder}: {error.strerror}") from None
    steps = []
    for name in how.get("recipes", ()):
        part = find(name)
        shared = folder_of(part) == folder_of(recipe)
        steps += get(part, root if shared else f"{root}/{folder_of(part)}")
    if how.get("torchvision"):
        entry = {"recipe": str(recipe.file), "root": root, "download": True}
        settings = dataset_entry(recipe.name, entry)
        read(settings.pop("source"), settings)
    if "hub" in how:
        fetch_from_hub(**how["hub"], root=folder)
    if "archives" in how:
        fetch_archives(how["archives"], folder)
    return steps + [step.replace("{root}", str(folder)) for step in how.get("manual", ())]


def fetch_from_hub(repository: str, revision: str, files: list[str], root: Path) -> None:
    """Download files of a data set on Hugging Face's hub, and compare them with its digests.

    `files` are names, or patterns with *. The address of the hub may be set by HF_ENDPOINT, and a
    token by HF_TOKEN.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]
    )
    from huggingface_hub.utils import filter_repo_objects
    from huggingface_hub.utils.logging import disable_propagation

    disable_propagation()  # it prints its lines itself
    where = f"data set {repository} of the hub {constants.ENDPOINT} at revision {revision}"
    at: dict[str, Any] = {"repo_id": repository, "repo_type": "dataset", "revision": revision}
    try:
        names = HfApi().list_repo_files(**at)
        for pattern in files:
            if not [*filter_repo_objects(names, allow_patterns=[pattern])]:
                raise FedLoomError(f"{where}: has no file '{pattern}'; mend the recipe")
        snapshot_download(**at, allow_patterns=files, local_dir=root)
        compared = HfApi().verify_repo_checksums(**at, local_dir=root)
    # HTTPError is that of the library which sends the requests, another one with each major version
    # of the hub's client; a refused connection is one, and no OSError. hf_xet, which fetches large
    # files, raises RuntimeError.
    except (HTTPError, HFValidationError, OSError, RuntimeError) as error:
        line = str(error).strip().partition("\n")[0].removeprefix("Got: ").rstrip(".")
        raise FedLoomError(
            f"{where}: {line or type(error).__name__}; run it again to continue, or set "
            "HF_ENDPOINT to a hub that can be reached"
        ) from None
    wrong = sorted(mismatch["path"] for mismatch in compared.mismatches)
    for path in wrong:
        (root / path).unlink()
    if wrong:
        line = f"{', '.join(wrong)} differed from the hub's digest and is deleted; run it again"
        raise FedLoomError(f"{where}: {line}")


def fetch_archives(archives: list[dict[str, Any]], root: Path) -> None:
    """Download the entries of a recipe's `get.archives`, and put or unpack them below the root."""
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    with FileLock(root / FOLDER / ".lock"):
        for archive in archives:
            _fetch(archive, root)


def _fetch(archive: dict[str, Any], root: Path) -> None:
    """Download one file and put it in its place, unless a record says that it was."""
    url = archive["url"]
    name = archive.get("name") or url.partition("?")[0].rstrip("/").rpartition("/")[2]
    into, file = root / archive.get("into", "."), root / FOLDER / name
    record = file.with_name(f"{name}.done.json")
    facts = read_json(record) if record.is_file() else {}
    stated = {key: archive[key] for key in ("url", "size", "sha256", "md5") if key in archive}
    if stated.items() <= facts.items() and all((into / name).exists() for name in facts["made"]):
        log.info("%s: is here already", name)
        return
    compared = "sha256" in archive or "md5" in archive
    if not file.exists():
        _download(url, file, compared)
    facts = _checked(file, archive)
    if not compared:
        line = "%s: %d bytes with sha256 %s; the recipe has no digest to compare it with"
        log.info(line, name, facts["size"], facts["sha256"])
    into.mkdir(parents=True, exist_ok=True)
    if name.endswith(ARCHIVES):
        log.info("%s: unpacking it into %s", name, into)
        made = unpack(file, into)
        file.unlink()
    else:
        made = [name]
        file.replace(into / name)
    write_text(record, canonical(facts | {"url": url, "made": made}) + "\n")


def _checked(file: Path, archive: dict[str, Any]) -> dict[str, Any]:
    """Return size and digests of a file; delete it if the recipe states others, and raise."""
    with file.open("rb") as stream:
        page = stream.read(1000).lstrip().lower().startswith((b"<!doctype html", b"<html"))
    if page:
        file.unlink()
        raise FedLoomError(
            f"{archive['url']}: the server sent a web page in its place; open the address in a "
            f"browser to see what it asks for, and put the file at {file}"
        )
    facts: dict[str, Any] = {"size": file.stat().st_size}
    for kind in ("sha256", "md5"):
        if kind == "sha256" or kind in archive:
            with file.open("rb") as stream:
                facts[kind] = hashlib.file_digest(stream, kind).hexdigest()
    for key, value in facts.items():
        if archive.get(key, value) != value:
            file.unlink()
            raise FedLoomError(
                f"{archive['url']}: its {key} is {value}, but the recipe says {archive[key]}; it "
                "is deleted; run it again, or mend the recipe if the publisher has changed the file"
            )
    return facts


def _download(url: str, file: Path, compared: bool) -> None:
    """Download a file, and continue the part of it that an earlier call or try left behind.

    Without a digest to be `compared` with, it must not come by plain http.
    """
    part, failed = file.with_name(f"{file.name}.part"), 0
    version = part.with_name(f"{part.name}.version")  # the server's, so that versions do not mix
    longest = _size(part)
    while True:
        try:
            _continue(url, part, version, compared)
            break
        except requests.RequestException as error:
            answer, reason = error.response, type(error).__name__
        if answer is not None:
            reason = f"the server says {answer.status_code} ({answer.reason})"
            if answer.status_code < 500 and answer.status_code not in (416, 429):
                raise FedLoomError(f"{url}: {reason}")
        # a server that knows no ranges starts anew each time, and may always end early
        failed = 0 if _size(part) > longest else failed + 1
        longest = max(longest, _size(part))
        if failed == TRIES:
            raise FedLoomError(f"{url}: {reason}, {TRIES} times; run it again to continue")
        log.info("%s: %s; trying again", url, reason)
        time.sleep(PAUSE * 2 ** max(0, failed - 1))
    part.replace(file)
    version.unlink(missing_ok=True)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _continue(url: str, part: Path, version: Path, compared: bool) -> None:
    """Ask for the rest of a partial file and append it; start anew if the file has changed."""
    start, headers = _size(part), {"Accept-Encoding": "identity"}  # sizes are those of the file
    if start and version.exists():
        headers |= {"Range": f"bytes={start}-", "If-Range": version.read_text()}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        ways = [urlsplit(hop.url) for hop in (*answer.history, answer)]
        if not compared and any(w.scheme == "http" and w.hostname not in HERE for w in ways):
            raise FedLoomError(
                f"{url}: comes by plain http, so that anyone on the way can change it; state its "
                f"sha256 in the recipe, or put a file that you trust at {part.with_suffix('')}"
            )
        if answer.status_code == 416:  # it ends where the part does, or before
            part.unlink()
        answer.raise_for_status()
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "W/"
        version.unlink(missing_ok=True)
        if not tag.startswith("W/"):
            version.write_text(tag)
        start = start if answer.status_code == 206 else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        with (
            part.open("ab" if start else "wb") as stream,
            download_progress(url, start, total) as bar,
        ):
            for piece in answer.iter_content(PIECE):
                stream.write(piece)
                bar.update(len(piece))
