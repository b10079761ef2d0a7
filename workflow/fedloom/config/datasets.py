"""The keys that all sources of data have, and the user's files that a dataset is made of."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedloom.common.checkout import matching, resource
from fedloom.common.folders import is_folder, walk
from fedloom.common.receipts import digest, sha256
from fedloom.common.schema import Count, Keys, Number, Several, require
from fedloom.config.settings import NOTHING_EXPECTED, Expected

DATA = "data"  # the folder of the checkout below which data sets lie by default
ImageSize = Annotated[int, Field(ge=1, le=4096)]


class LongTail(Keys):
    """Keep n * (1/factor)^(i/(C-1)) training images of class i of C.

    n is the number of the largest class (Cao et al., LDAM); the test images stay.
    """

    factor: Annotated[Number, Field(ge=1)]
    """Imbalance, of the first class to the last."""


class SourceKind(Keys):
    """The keys that every source has beside `source`: they choose the images of a dataset."""

    keep_classes: Several[str] | None = None
    """Names of the classes to keep, numbered anew in this order; default: all."""
    min_images_per_domain: Count | None = None
    """Leave out domains with fewer training images (with fewer images, where the test split is
    drawn)."""
    first_per_domain: Count | None = None
    """Keep at most this number of training images of every domain, the first in the order in which
    the source lists them; the test images stay (FedBN's code)."""
    long_tail: LongTail | None = None
    max_train_per_class: Count | None = None
    """At most this number of training images of every class; the same in every run."""
    max_test_per_class: Count | None = None
    """At most this number of test images of every class."""
    max_train: Count | None = None
    """At most this number of training images, drawn in proportion to the classes; the same in every
    run."""
    max_test: Count | None = None
    """At most this number of test images."""

    def expected(self) -> Expected:
        """Return the numbers of images and classes, where the keys alone state them."""
        return NOTHING_EXPECTED


TestFraction = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="of a dataset without an official test split; fixed, stratified by class and "
        "domain where there are images enough, else by each of them. 1: a dataset to test on alone",
    ),
]
ClassPerDomain = Annotated[
    bool,
    Field(
        description='classes of one name in two domains are two classes, named "domain/class"; '
        "else they are one"
    ),
]
Resize = Annotated[
    Literal["crop", "squash"],
    Field(
        description="crop (the default): as image_size says; squash: the whole image is resized to "
        "the square, whatever its shape"
    ),
]
SkipUnreadable = Annotated[
    bool,
    Field(
        description="leave unreadable images out, named in the log and counted in the receipt "
        "images.json"
    ),
]
ClassNames = Annotated[
    list[Annotated[str, Field(pattern=r"\S")]] | None,
    Field(
        min_length=1,
        description="a name for every class, in the order of their numbers; default: the dataset's "
        "own, or the numbers, which CLIP methods refuse",
    ),
]


class ImageSource(SourceKind):
    """The keys of a source of images of any size."""

    image_size: ImageSize | None = Field(None)
    """Images are resized to this shorter side (bicubic) and cut to a square; default: as they are,
    which must be one size."""
    resize: Resize | None = None
    skip_unreadable: SkipUnreadable = False

    @model_validator(mode="after")
    def _resized_to_a_size(self) -> Self:
        return require(self, resize="image_size")


def listing(dataset: dict, paths: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Return the number and the digest of the files of an entry of the config's `datasets`.

    The digest of names and sizes is part of a dataset's parameters, since Snakemake would compare
    large inputs by time, and a folder not at all. (A file of the same name and size with other
    bytes goes unnoticed.) Of images that lists name, the lists count with their contents: the
    images may be a small part of a million files. Missing files are not an error: a dry run plans a
    study where its data is not.

    Args:
        paths: of a plugin's source, the options that name folders, files or patterns of files.

    Returns:
        `files` and `sha256`, or None for a dataset that reads no files of the user's.
    """
    if paths is not None:
        named = [key for key in paths if dataset.get(key)]
        sizes = [[key, *size] for key in named for size in _sizes(dataset[key])]
        return {"files": len(sizes), "sha256": digest(sizes)} if paths else None
    if dataset.get("download"):
        return None
    if "class_from" in dataset:
        root = resource(dataset["root"])
        sizes = [[half, name, sha256(root / name)] for half, name in _lists(dataset, root)]
    elif "root" in dataset:
        sizes = _folder_sizes(resource(dataset["root"]))
    elif "train_files" in dataset:
        sizes = [
            [kind, *size]
            for kind in ("train_files", "test_files")
            for size in _sizes(dataset.get(kind, []))
        ]
    else:
        return None
    return {"files": len(sizes), "sha256": digest(sizes)}


def _lists(dataset: dict, root: Path) -> Iterator[tuple[str, str]]:
    """Yield split and name of every list of images that is there."""
    for half in ("train", "test"):
        entry = dataset.get(half, [])
        for names in entry.values() if isinstance(entry, dict) else [entry]:
            for name in [names] if isinstance(names, str) else names:
                if (root / name).is_file():
                    yield half, name


def _sizes(paths: str | list[str]) -> list[list]:
    """Return name and size of the files of a folder, or of those that patterns match."""
    if isinstance(paths, str) and is_folder(resource(paths)):
        return _folder_sizes(resource(paths))
    return [[file.name, file.stat().st_size] for file in matching(paths) if file.is_file()]


def _folder_sizes(root: Path) -> list[list]:
    """Return name below the root and size of every file that is not hidden, in order of names."""
    if not is_folder(root):
        return []
    sizes = [
        [entry.path.removeprefix(f"{root}/"), entry.stat().st_size]
        for _, _, entries in walk(str(root))
        for entry in entries
        if entry.is_file()  # no dangling link, no pipe
    ]
    return sorted(sizes, key=lambda item: item[0].split("/"))


def described(dataset: dict, paths: Sequence[str] | None = None) -> str:
    """Return the listing in words, for a store's provenance."""
    found = listing(dataset, paths)
    if found is None:
        return "downloaded by torchvision, which checks its files"
    return f"{found['files']} files, sha256 of names and sizes {found['sha256']}"
