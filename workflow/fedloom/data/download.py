"""Download a data set's files as its recipe says.

Files are downloaded by torchvision, from Hugging Face's hub, or as archives. For all other files,
the recipe lists the steps that a person must do.

An archive lies in <root>/.downloads while it is downloaded. Once it is unpacked or in its place, a
record of the recipe's entry remains there. From this record, a second call knows that nothing is
left to do.
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

    Files that are there already are not downloaded again. If a data set consists of several others,
    these are downloaded one by one. Default for `root`: the recipe's folder.
    """
    root = root or recipe.root
    folder = resource(root)
    how = recipe.get.plain
    if how.keys() - {"manual"}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedLoomError(f"{recipe.name}: root {folder}: {error.strerror}") from None

    # the data sets of which this one consists
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
    """Download files of a data set on Hugging Face's hub, and compare them with the hub's digests.

    `files` are names, or patterns with *. The environment may set the address of the hub in
    HF_ENDPOINT, and a token in HF_TOKEN. Raises a FedLoomError if a file is missing or differs from
    its digest; a file that differs is deleted.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils.logging import disable_propagation

    # the hub's client prints its log lines itself
    disable_propagation()

    # download the files, compare their digests, and check that no file of the recipe is missing
    where = f"data set {repository} of the hub {constants.ENDPOINT} at revision {revision}"
    at: dict[str, Any] = {"repo_id": repository, "repo_type": "dataset", "revision": revision}
    try:
        snapshot_download(**at, allow_patterns=files, local_dir=root)
        compared = HfApi().verify_repo_checksums(**at, local_dir=root)
        missing = [name for name in files if not any(root.rglob(name))]
    except Exception as error:
        # the hub's client and the libraries below it raise many kinds of exceptions
        raise FedLoomError(
            f"{where}: {in_words(error)}; run it again to continue, or set HF_ENDPOINT to a hub "
            "that can be reached"
        ) from None
    if missing:
        raise FedLoomError(f"{where}: has no file '{missing[0]}'; correct the recipe")

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

    Does nothing if the record of an earlier call says that this was done.
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
    digest_name = next((key for key in ("sha256", "md5") if key in archive), None)
    if not file.exists():
        _download(url, file, digest_name is not None)
    _check(file, url, digest_name, archive.get(digest_name or ""))

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
    """Download a file; raise a FedLoomError if that fails.

    `compared` says that the file will be compared with a digest. Then the part that an earlier call
    left behind is continued, because the digest shows if the file has changed in between.
    """
    # this function repeats a failed request, and continues a part, by itself
    from huggingface_hub.file_download import http_get

    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("ab" if compared else "wb") as stream:
            # no compression, so that the server's sizes are those of the file
            plain = {"Accept-Encoding": "identity"}
            http_get(url, stream, resume_size=stream.tell(), headers=plain)
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", 0) == 416:
            # status 416: the part is as long as the file, or longer
            part.unlink()
        raise FedLoomError(f"{url}: {in_words(error)}; run it again to continue") from None
    part.replace(file)


def _check(file: Path, url: str, digest_name: str | None, stated: str | None) -> None:
    """Delete a downloaded file and raise a FedLoomError if it is not what the recipe expects.

    The file must not be a web page, and its digest `digest_name`, sha256 or md5, must be
    `stated`.
    If the recipe states no digest, `digest_name` is None.
    """
    with file.open("rb") as stream:
        is_page = stream.read(1000).lstrip().lower().startswith((b"<!doctype html", b"<html"))
        stream.seek(0)
        digest = hashlib.file_digest(stream, digest_name or "sha256").hexdigest()

    # some hosts send a web page instead of the file
    if is_page:
        file.unlink()
        raise FedLoomError(
            f"{url}: deleted what came, because it is a web page; open the address in a browser, "
            f"and put its file at {file}"
        )

    # compare the digest if the recipe states one
    if digest_name and digest != stated:
        file.unlink()
        raise FedLoomError(
            f"{url}: deleted what came, because its {digest_name} is {digest}, not the recipe's "
            f"{stated}; run the command again, or correct the digest in the recipe"
        )
    if not digest_name:
        log.info("%s: its sha256 is %s; the recipe has no digest to compare it with", url, digest)
