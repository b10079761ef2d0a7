"""Download a data set's files as its recipe says.

They come from torchvision, Hugging Face's hub or archives; the rest are steps for a person.

An archive lies in <root>/.downloads while it is fetched. Once it is in place or unpacked, a record
of the recipe's entry remains there, by which a second call knows that nothing is left to do.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any

from fedloom.common.errors import FedLoomError, in_words
from fedloom.common.files import canonical, read_json, write_text
from fedloom.common.json_types import JsonDict
from fedloom.common.locks import file_lock
from fedloom.config.recipes import Recipe, dataset_entry, find_recipe
from fedloom.data.archives import unpack
from fedloom.data.sources import read
from fedloom.machine.install import resource

log = logging.getLogger(__name__)

DOWNLOADS = ".downloads"
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz")


def download_recipe(recipe: Recipe, root: str | None = None) -> list[str]:
    """Download a data set's files below the root, and return the steps that a person must do.

    Files that are there already are not fetched again. The parts of a data set of several are
    downloaded one by one. The root is the recipe's by default.
    """
    root = root or recipe.root
    folder = resource(root)
    how = recipe.get.plain
    if how.keys() - {"manual"}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedLoomError(f"{recipe.name}: root {folder}: {error.strerror}") from None

    # the parts of a data set of several
    steps = []
    for name in how.get("recipes", ()):
        part = find_recipe(name)
        root_of_part = f"{root}/{part.folder}"
        if part.folder == recipe.folder:
            root_of_part = root
        steps += download_recipe(part, root_of_part)

    # torchvision downloads when it lists the images
    if how.get("torchvision"):
        entry = {"recipe": str(recipe.file), "root": root, "download": True}
        settings = dataset_entry(recipe.name, entry)
        read(settings.pop("source"), settings)

    if "hub" in how:
        fetch_from_hub(**how["hub"], root=folder)

    for archive in how.get("archives", ()):
        with file_lock(
            folder / DOWNLOADS / ".lock", f"{folder}: another process fetches it", log.info
        ):
            fetch_archive(archive, folder)

    steps += [step.replace("{root}", str(folder)) for step in how.get("manual", ())]
    return steps


def fetch_from_hub(repository: str, revision: str, files: list[str], root: Path) -> None:
    """Download files of a data set on Hugging Face's hub, and compare them with its digests.

    `files` are names, or patterns with *. The address of the hub may be set by HF_ENDPOINT, and a
    token by HF_TOKEN.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils.logging import disable_propagation

    # the client prints its lines itself
    disable_propagation()

    # the files, as the hub's digests say, and all that the recipe names
    where = f"data set {repository} of the hub {constants.ENDPOINT} at revision {revision}"
    at: dict[str, Any] = {"repo_id": repository, "repo_type": "dataset", "revision": revision}
    try:
        snapshot_download(**at, allow_patterns=files, local_dir=root)
        compared = HfApi().verify_repo_checksums(**at, local_dir=root)
        missing = [name for name in files if not any(root.rglob(name))]
    except Exception as error:
        # of the client, of what sends its requests, or of what fetches files
        raise FedLoomError(
            f"{where}: {in_words(error)}; run it again to continue, or set HF_ENDPOINT to a hub "
            "that can be reached"
        ) from None
    if missing:
        raise FedLoomError(f"{where}: has no file '{missing[0]}'; mend the recipe")

    # a file that differs is deleted, so that another call fetches it anew
    wrong = sorted(mismatch["path"] for mismatch in compared.mismatches)
    for path in wrong:
        (root / path).unlink()
    if wrong:
        raise FedLoomError(
            f"{where}: {', '.join(wrong)} differed from the hub's digest and is deleted; run it "
            "again"
        )


def fetch_archive(archive: JsonDict, root: Path) -> None:
    """Download an entry of a recipe's `get.archives`, and put or unpack it below the root.

    Nothing is done if a record says that it was.
    """
    url = archive["url"]
    name = archive.get("name") or url.partition("?")[0].rstrip("/").rpartition("/")[2]
    into = root / archive.get("into", ".")
    file = root / DOWNLOADS / name

    # the record of an earlier call
    record = file.with_name(f"{name}.done.json")
    done = read_json(record) if record.is_file() else {}
    if done.get("entry") == archive and all((into / made).exists() for made in done["made"]):
        log.info("%s: is here already", name)
        return

    # download it, and compare it with the recipe's digest
    file.parent.mkdir(parents=True, exist_ok=True)
    kind = next((key for key in ("sha256", "md5") if key in archive), None)
    if not file.exists():
        _download(url, file, kind is not None)
    _check(file, url, kind, archive.get(kind or ""))

    # unpack, or put it in place
    into.mkdir(parents=True, exist_ok=True)
    if name.endswith(ARCHIVES):
        log.info("%s: unpacking it into %s", name, into)
        made = unpack(file, into, archive.get("unpacked_bytes"))
        file.unlink()
    else:
        made = [name]
        file.replace(into / name)
    write_text(record, canonical({"entry": archive, "made": made}) + "\n")


def _download(url: str, file: Path, compared: bool) -> None:
    """Download a file.

    With a digest to be `compared` with, it continues the part that an earlier call left behind, for
    the digest shows if the file has changed in between.
    """
    # this function tries again, and goes on, by itself
    from huggingface_hub.file_download import http_get

    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("ab" if compared else "wb") as stream:
            # without compression, so that sizes are those of the file
            plain = {"Accept-Encoding": "identity"}
            http_get(url, stream, resume_size=stream.tell(), headers=plain)
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", 0) == 416:
            # status 416: the file ends where the part does, or before
            part.unlink()
        raise FedLoomError(f"{url}: {in_words(error)}; run it again to continue") from None
    part.replace(file)


def _check(file: Path, url: str, kind: str | None, stated: str | None) -> None:
    """Delete a file, and raise, if it is a web page or its digest not the one that is `stated`."""
    with file.open("rb") as stream:
        is_page = stream.read(1000).lstrip().lower().startswith((b"<!doctype html", b"<html"))
        stream.seek(0)
        digest = hashlib.file_digest(stream, kind or "sha256").hexdigest()

    # a page that a host sends in place of the file
    if is_page:
        file.unlink()
        raise FedLoomError(
            f"{url}: deleted what came, because it is a web page; open the address in a browser, "
            f"and put its file at {file}"
        )

    # the digest, where the recipe states one
    if kind and digest != stated:
        file.unlink()
        raise FedLoomError(
            f"{url}: deleted what came, because its {kind} is {digest}, not the recipe's {stated}; "
            "run it again, or mend that"
        )
    if not kind:
        log.info("%s: its sha256 is %s; the recipe has no digest to compare it with", url, digest)
