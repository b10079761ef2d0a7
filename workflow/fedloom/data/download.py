"""Downloads of data sets: resumed where they were cut, checked by digest, unpacked once.

A file lies in <root>/.downloads while it is fetched. When it is in its place, or what it holds is,
a record with its address, size and sha256 remains there, by which a second call knows that nothing
is left to do.
"""

import hashlib
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from filelock import FileLock

from fedloom.common.errors import FedLoomError
from fedloom.common.io import canonical, read_json, write_text
from fedloom.common.logs import download_progress
from fedloom.data.archives import unpack

log = logging.getLogger(__name__)

FOLDER = ".downloads"
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")
TRIES = 5  # in a row that bring no more than an earlier one
PAUSE = 2.0  # seconds before the second try, and twice as long before every further one
TIMEOUT = 60.0  # seconds without an answer
HERE = ("127.0.0.1", "localhost", "::1")  # this machine, to which the way is short
PIECE = 1 << 20  # bytes written at once


def fetch_archives(archives: list[dict[str, Any]], root: Path) -> None:
    """Download files and put them, or what archives hold, below the root.

    Args:
        archives: entries of a recipe's `get.archives`.

    Raises:
        FedLoomError: a server does not answer, or sends something else than the recipe says; or
            a file without a digest in the recipe would come by plain http.
    """
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    with FileLock(root / FOLDER / ".lock"):
        for archive in archives:
            _fetch(archive, root)


def fetch_from_hub(repository: str, revision: str, files: list[str], root: Path) -> None:
    """Download files of a data set on Hugging Face's hub, and compare them with its digests.

    The address of the hub may be set by HF_ENDPOINT, and a token by HF_TOKEN.

    Args:
        files: names, or patterns with *.

    Raises:
        FedLoomError: the hub cannot be reached or has no such files, or one came out different.
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
            f"{where}: {line or type(error).__name__}; run it again to go on from here, or set "
            "HF_ENDPOINT to a hub that can be reached"
        ) from None
    wrong = sorted(mismatch["path"] for mismatch in compared.mismatches)
    for path in wrong:
        (root / path).unlink()
    if wrong:
        raise FedLoomError(
            f"{where}: {', '.join(wrong)} differed from the hub's digest and is deleted; run it "
            "again"
        )


def _fetch(archive: dict[str, Any], root: Path) -> None:
    """Download one file and put it in its place, unless a record says that it was."""
    url = archive["url"]
    name = archive.get("name") or url.partition("?")[0].rstrip("/").rpartition("/")[2]
    into, file = root / archive.get("into", "."), root / FOLDER / name
    record = file.with_name(f"{name}.done.json")
    if _is_done(record, archive, into):
        log.info("%s: is here already", name)
        return
    compared = "sha256" in archive or "md5" in archive
    if not file.exists():
        _download(url, file, compared)
    facts = {"url": url} | _checked(file, archive)
    if not compared:
        line = "%s: %d bytes with sha256 %s; the recipe has no digest to compare it with"
        log.info(line, name, facts["size"], facts["sha256"])
    into.mkdir(parents=True, exist_ok=True)
    if name.endswith(ARCHIVES):
        log.info("%s: unpacking it into %s", name, into)
        made = unpack(file, into, trusted=compared)
        file.unlink()
    else:
        made = [name]
        file.replace(into / name)
    write_text(record, canonical(facts | {"made": made}) + "\n")


def _is_done(record: Path, archive: dict[str, Any], into: Path) -> bool:
    """Return True if a record says that this file was put in place, and what it made is there.

    Raises:
        FedLoomError: the record is damaged.
    """
    if not record.is_file():
        return False
    facts = read_json(record)
    if not isinstance(facts.get("made"), list):
        raise FedLoomError(f"{record}: not what FedLoom wrote; delete it and run again")
    stated = {key: archive[key] for key in ("url", "size", "sha256", "md5") if key in archive}
    there = all((into / name).exists() for name in facts["made"])
    return there and stated.items() <= facts.items()


def _checked(file: Path, archive: dict[str, Any]) -> dict[str, Any]:
    """Return size and digests of a downloaded file, which must be those that the recipe states.

    Raises:
        FedLoomError: they are others. The file is deleted, so that another try fetches it anew.
    """
    with file.open("rb") as stream:
        start = stream.read(1000).lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
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
        if key in archive and archive[key] != value:
            file.unlink()
            raise FedLoomError(
                f"{archive['url']}: its {key} is {value}, but the recipe says {archive[key]}; it "
                "is deleted; run it again, or mend the recipe if the publisher has changed the file"
            )
    return facts


def _download(url: str, file: Path, compared: bool) -> None:
    """Download a file; what an earlier call or try left behind is gone on from.

    Args:
        compared: there is a digest to compare the file with.

    Raises:
        FedLoomError: the server refuses, or several tries in a row brought no more of the file than
            an earlier one did; or without a digest, it comes by plain http.
    """
    part, failed = file.with_name(f"{file.name}.part"), 0
    longest = _size(part)
    while True:
        try:
            refusal = _go_on(url, part, compared)
            if refusal is None:
                break
            reason = f"the server says {refusal.status_code} ({refusal.reason})"
            if refusal.status_code < 500 and refusal.status_code != 429:
                raise FedLoomError(f"{url}: {reason}")
        except requests.RequestException as error:
            reason = type(error).__name__
        # a server that knows no ranges starts anew each time, and may always end early
        failed = 0 if _size(part) > longest else failed + 1
        longest = max(longest, _size(part))
        if failed == TRIES:
            raise FedLoomError(f"{url}: {reason}, {TRIES} times; run it again to go on from here")
        log.info("%s: %s; trying again", url, reason)
        time.sleep(PAUSE * 2 ** max(0, failed - 1))
    part.replace(file)
    _tag_of(part).unlink(missing_ok=True)


def _size(part: Path) -> int:
    """Return how many bytes there are of a file; 0 if it is not there."""
    return part.stat().st_size if part.exists() else 0


def _tag_of(part: Path) -> Path:
    """Return where the server's name for a file's version is noted, so that versions do not mix."""
    return part.with_name(f"{part.name}.version")


def _go_on(url: str, part: Path, compared: bool) -> requests.Response | None:
    """Ask for what a partial file lacks and append it; start anew if the server's file is another.

    Returns:
        The server's answer if it refuses; then nothing is appended.

    Raises:
        requests.RequestException: the connection ended early.
        FedLoomError: it comes by plain http, and nothing tells what was changed on the way.
    """
    start, tag, headers = _size(part), _tag_of(part), {}
    if start and tag.exists():
        headers = {"Range": f"bytes={start}-", "If-Range": tag.read_text()}
    headers |= {"Accept-Encoding": "identity"}  # sizes and ranges are those of the file
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        ways = [urlsplit(hop.url) for hop in (*answer.history, answer)]
        if not compared and any(w.scheme == "http" and w.hostname not in HERE for w in ways):
            raise FedLoomError(
                f"{url}: comes by plain http, so that anyone on the way can change it; state its "
                f"sha256 in the recipe, or put a file that you trust at {part.with_suffix('')}"
            )
        if answer.status_code == 416:  # there is no more of it
            if answer.headers.get("Content-Range", "").rpartition("/")[2] == str(start):
                return None
            part.unlink()
            raise requests.ConnectionError("the file has changed")
        if not answer.ok:
            return answer
        goes_on = answer.status_code == 206
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        if version is not None and not version.startswith("W/"):
            tag.write_text(version)
        else:
            tag.unlink(missing_ok=True)
        start = start if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        with (
            part.open("ab" if goes_on else "wb") as stream,
            download_progress(url, start, total) as bar,
        ):
            for piece in answer.iter_content(PIECE):
                stream.write(piece)
                bar.update(len(piece))
    return None
