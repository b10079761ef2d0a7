"""Define the keys that all sources have in common, and list the files that a dataset is made of."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import is_folder, walk
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import digest, sha256
from fedloom.common.schema import Count, Keys, Number, PositiveShare, Several, require_other_keys
from fedloom.config.image_lists import list_files, listed_files
from fedloom.config.settings import Expected
from fedloom.machine.install import matching, resource

# data sets lie below this folder of the checkout by default
DATA_FOLDER = "data"
# the suffixes of files that may be lists of images
TEXTS = (".txt", ".csv", ".tsv", ".json")
ImageSize = Annotated[int, Field(ge=1, le=4096)]


class LongTail(Keys):
    """Keep a long-tailed part of the training images (LDAM).

    Of C classes, class i (from 0) keeps n * (1/factor)^(i/(C-1)) training images, where n is the
    size of the largest class.
    """

    factor: Annotated[Number, Field(ge=1)]
    """Imbalance factor: the size of the first class divided by that of the last."""


class SourceKind(Keys):
    """The keys that every source has beside `source`: they choose the images of a dataset."""

    # the licence of the images, if the source itself brings or makes them; recipes state others
    licence: ClassVar[str | None] = None

    keep_classes: Several[str] | None = None
    """Names of the classes to keep, which are then numbered in this order. Default: all classes."""
    min_images_per_domain: Count | None = None
    """Leave out domains with fewer training images than this number. If there is no official test
    split, all images of a domain count."""
    first_per_domain: Count | None = None
    """Keep at most this number of training images of every domain: the first ones that the source
    lists (FedBN's code)."""
    long_tail: LongTail | None = None
    max_train_per_class: Count | None = None
    """Keep at most this number of training images of every class. All runs have the same images."""
    max_test_per_class: Count | None = None
    """Keep at most this number of test images of every class. All runs have the same images."""
    max_train: Count | None = None
    """Keep at most this number of training images of all classes together, in proportion to the
    classes. All runs have the same images."""
    max_test: Count | None = None
    """Keep at most this number of test images of all classes together, in proportion to the
    classes. All runs have the same images."""

    def expected(self) -> Expected:
        """Return the numbers of images and classes, as far as the keys alone state them."""
        return Expected()


OF_TEST = (
    "Share of the images that become test images, where there is no official test split. They are "
    "the same in every run, and stratified by class and domain, or by each of the two where images "
    "are few. With 1, all images are test images, for a dataset that no client trains on."
)
TestFraction = Annotated[PositiveShare, Field(description=OF_TEST)]
NAMES = (
    "Names of all classes, in the order of their numbers. Default: the names that the dataset has; "
    "if it has none, the numbers, which CLIP methods refuse."
)
Name = Annotated[str, Field(pattern=r"\S")]
ClassNames = Annotated[list[Name] | None, Field(min_length=1, description=NAMES)]


class ImageSource(SourceKind):
    """The keys of a source of images of any size."""

    image_size: ImageSize | None = Field(None)
    """Side of the stored images in pixels. The shorter side is resized to it (bicubic), and the
    centre is cut out as a square. Default: images keep their size, which must be the same for
    all."""
    resize: Literal["crop", "squash"] | None = None
    """How images are brought to `image_size`: `crop` (default) resizes the shorter side and cuts
    out the centre; `squash` resizes the whole image to the square."""
    grey_bits: Annotated[int, Field(ge=8, le=16)] | None = None
    """Number of significant bits of 16-bit grey images, such as 12 for many scans. Default: 16; but
    if no image uses the highest bit, this key must be set."""
    transparency: Literal["ignore", "white", "black"] | None = None
    """Colour behind transparent pixels: `white`, as viewers show them; `black`; or `ignore`
    (default, as in torchvision), which shows the colours that are stored there, often black."""
    skip_unreadable: bool = False
    """Leave out images that cannot be read; by default, they are an error. The log names these
    images, and the receipt images.json counts them."""

    @model_validator(mode="after")
    def _resized_to_a_size(self) -> Self:
        return require_other_keys(self, resize="image_size")


class PluginSource(ImageSource):
    """The keys that every source of a plugin has beside its options."""

    class_names: ClassNames = None
    test_fraction: TestFraction = 0.3


def listing(dataset: dict, paths: Sequence[str] | None = None) -> JsonDict | None:
    """Return the number of files that a dataset is made of, and a sha256 that identifies them.

    Return None if the dataset reads no files. Both numbers are parameters of the dataset's job,
    since Snakemake would compare large input files by their times, and a folder not at all.

    The sha256 covers the names and the sizes of all files. It also covers the contents of files
    that state the classes of images or the names of classes: a correction of these may leave the
    size as it is. A missing file is not an error, so that a dry run can plan a study on a machine
    without the study's data.

    Args:
        dataset: the key `source`, and the keys of that source.
        paths: the options that name files, if the source is a plugin's.
    """
    if paths is None and "train_files" in dataset:
        paths = ["train_files", "test_files"]
    if paths == [] or (paths is None and dataset.get("download")):
        return None

    if paths is not None:
        named = [key for key in paths if dataset.get(key)]
        files = [[key, *size] for key in named for size in _sizes(dataset[key])]
    elif "class_from" in dataset:
        files = _of_lists(dataset, resource(dataset["root"]))
    elif "root" in dataset:
        root = resource(dataset["root"])
        files = [*_folder_sizes(root), *_contents(_texts(dataset, root))]
    else:
        return None
    return {"files": len(files), "sha256": digest(files)}


def _of_lists(dataset: dict, root: Path) -> list[list]:
    """Return the sha256 of every list, and the path and size of every image that the lists name.

    Other images in the same folder do not count; there may be a million of them.
    """
    lists = [(half, root / file) for half, file, _ in list_files(dataset)]
    try:
        images = listed_files(root, dataset)
    except FedLoomError:
        # the job that reads the lists says what is wrong with them
        return _contents(lists)
    top = f"{root.resolve()}/"
    paths = [row.path for row in images]
    sizes = [[path.removeprefix(top), os.stat(path).st_size] for path in paths]  # noqa: PTH116
    return [*_contents(lists), *sizes]


def _texts(dataset: dict, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the key and the path of each file that states class names, or classes of images."""
    if "names" in dataset:
        yield "names", root / dataset["names"]
    if "test_list" in dataset and "split" in dataset:
        yield "test_list", root / dataset["split"][1] / dataset["test_list"]["file"]


def _contents(files: Iterable[tuple[str, Path]]) -> list[list]:
    """Return the key and the sha256 of each file that exists.

    Raises:
        FedLoomError: a file exists and cannot be read.
    """
    found = []
    for key, file in files:
        try:
            if file.is_file():
                found.append([key, sha256(file)])
        except OSError as error:
            # its name is too long, or it is a file of another user
            raise FedLoomError(
                f"{file}: cannot be read ({error.strerror}); correct the path, or who may read it"
            ) from None
    return found


def _sizes(paths: str | list[str]) -> list[list]:
    """Return the name and the size of each file in a folder, or of each file that patterns match.

    Also return the sha256 of each text file that patterns match, since it may be a list of images.
    """
    if isinstance(paths, str) and is_folder(resource(paths)):
        return _folder_sizes(resource(paths))
    files = [file for file in matching(paths) if file.is_file()]
    texts = [(file.name, file) for file in files if file.suffix.lower() in TEXTS]
    return [*([file.name, file.stat().st_size] for file in files), *_contents(texts)]


def _folder_sizes(root: Path) -> list[list]:
    """Return the path below the root, and the size, of every file that is not hidden, by path."""
    if not is_folder(root):
        return []
    sizes = []
    for _, _, entries in walk(str(root)):
        # links that lead nowhere and pipes are left out
        files = [entry for entry in entries if entry.is_file()]
        sizes += [[file.path.removeprefix(f"{root}/"), file.stat().st_size] for file in files]
    return sorted(sizes, key=lambda item: item[0].split("/"))


def describe_listing(dataset: dict, paths: Sequence[str] | None = None) -> str:
    """Return a sentence about the listing of a dataset, for the receipt of its store."""
    found = listing(dataset, paths)
    if found is None:
        return "downloaded by torchvision, which checks its files"
    return f"{found['files']} files, sha256 of names, sizes and lists {found['sha256']}"
