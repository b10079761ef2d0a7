"""Read any image classification dataset of torchvision, by the name of its class."""

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import Field

from fedloom.common.errors import FedLoomError, check_known, in_words, one_line
from fedloom.common.folders import printable
from fedloom.common.json_types import JsonDict
from fedloom.config.datasets import ClassNames, ImageSource, TestFraction, describe_listing
from fedloom.data.image_list import ImageList, Item
from fedloom.machine.install import resource

# arguments that choose a half of an official split; the first that a class has is used
OFFICIAL = {"train": (True, False), "split": ("train", "test")}


class Torchvision(ImageSource):
    """Any image classification dataset of torchvision.datasets."""

    name: str
    """Name of its class in torchvision.datasets, such as CIFAR100."""
    root: str
    """Folder that torchvision takes as `root`, relative to the checkout."""
    download: bool = False
    """Whether torchvision downloads the files if they are not there."""
    options: JsonDict = Field({})
    """Further arguments of the class, such as {split: letters} for EMNIST."""
    train: JsonDict = Field({})
    """Arguments for the training images. Default: train=True or split=train, whichever the class
    takes."""
    test: JsonDict = Field({})
    """Arguments for the test images, such as {split: val} for ImageNet. Default: train=False or
    split=test, whichever the class takes."""
    class_names: ClassNames = None
    test_fraction: TestFraction = 0.3


def read(settings: JsonDict) -> ImageList:
    """List the images of a torchvision dataset; an official test split is kept."""
    import torchvision

    # the training and the test half, or the whole dataset
    dataset_class = _class(settings["name"])
    halves = [
        _open(dataset_class, settings, arguments)
        for arguments in _arguments(dataset_class, settings)
    ]
    labels_of_halves = [_labels(half) for half in halves]

    def items() -> Iterator[Item]:
        """Yield the images of both halves, named by half, number and file."""
        words = ("",)
        if len(halves) == 2:
            words = (" train", " test")
        for half, word, own in zip(halves, words, labels_of_halves, strict=True):
            for row, label in enumerate(own):
                place = f"{word} image {row}{_path(half, row)}"
                name = printable(f"torchvision {settings['name']}{place}")
                yield Item(name, partial(_load, half, row, int(label)))

    # classes have torchvision's names, or their numbers
    labels = np.concatenate(labels_of_halves)
    names = _class_names(halves[0])
    numbers = [str(number) for number in range(labels.max(initial=-1) + 1)]

    test = None
    if len(halves) == 2:
        test = np.repeat([False, True], [len(half) for half in halves])
    version = f"torchvision {torchvision.__version__} {settings['name']}"
    return ImageList(
        items=items,
        labels=labels,
        classes=names or numbers,
        provenance=f"{version}: {describe_listing(settings)}",
        test=test,
        named=bool(names),
    )


def _class_names(dataset: Any) -> list[str]:
    """Return the names of a dataset's classes, or [] if torchvision has none."""
    names = getattr(dataset, "classes", None) or getattr(dataset, "categories", None) or []
    return [", ".join(name) if isinstance(name, tuple | list) else str(name) for name in names]


def _class(name: str) -> type:
    """Return torchvision's class of a dataset."""
    from torchvision import datasets

    check_known(name, datasets.__all__, "torchvision has no dataset")
    return getattr(datasets, name)


def _arguments(dataset_class: type, settings: JsonDict) -> list[JsonDict]:
    """Return the arguments of the class for the training and the test half.

    If the class has no official split, return the arguments for the whole dataset alone.
    """
    # the arguments that the class takes; a class with **kwargs hands them to its parent class
    names: set[str] = set()
    for parent in dataset_class.__mro__:
        parameters = inspect.signature(parent.__init__).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break

    # the arguments of both halves
    arguments = {"root": str(resource(settings["root"])), "download": settings["download"]}
    common = {key: value for key, value in arguments.items() if key in names}
    common.update(settings["options"])

    # the arguments of each half: those of the config, or those that most of torchvision's classes
    # have
    if settings["train"] or settings["test"]:
        return [common | settings["train"], common | settings["test"]]
    for key, values in OFFICIAL.items():
        if key in names and key not in settings["options"]:
            return [common | {key: value} for value in values]
    return [common]


def _open(dataset_class: type, settings: JsonDict, arguments: JsonDict) -> Any:
    """Return the dataset; raise a FedLoomError if it refuses the arguments or lacks whole files."""
    if arguments.get("download"):
        Path(arguments["root"]).mkdir(parents=True, exist_ok=True)

    # first errors about the arguments, then all others
    try:
        return dataset_class(**arguments)
    except (TypeError, ValueError) as error:
        raise FedLoomError(
            f"torchvision {dataset_class.__name__}: {one_line(error).rstrip('.')}; set options, "
            "train or test to arguments that it takes"
        ) from None
    except Exception as error:
        # readers of damaged files raise many kinds of exceptions
        cure = "set download: true"
        if settings["download"]:
            cure = "check the connection"
        raise FedLoomError(
            f"torchvision {dataset_class.__name__}: not there, or not whole: "
            f"{in_words(error).rstrip('.')}; put its unpacked files below "
            f"{arguments.get('root')}, or {cure}"
        ) from None


def _load(dataset: Any, row: int, label: int) -> Image.Image:
    """Read an image; raise a FedLoomError if its target is not the label that was listed for it."""
    image, target = dataset[row]
    if int(target) != label:
        raise FedLoomError(
            f"torchvision {type(dataset).__name__}: image {row} has the target {target}, but is "
            f"listed with the label {label}; leave out options that choose other targets"
        )
    return image


def _labels(dataset: Any) -> np.ndarray:
    """Return the class of each image, [N]; if torchvision keeps no list of them, read all images.

    Raises a FedLoomError if a label is not a whole number, or if an image cannot be read.
    """
    targets = _listed_labels(dataset)
    try:
        if targets is None:
            targets = (dataset[row][1] for row in range(len(dataset)))
        return np.array([int(target) for target in targets], int)
    except Exception as error:
        raise FedLoomError(
            f"torchvision {type(dataset).__name__}: labels cannot be listed ({in_words(error)}); "
            "repair or remove the image, or take a classification dataset"
        ) from None


def _listed_labels(dataset: Any) -> Any:
    """Return the list of labels that a dataset keeps beside its images; None if it keeps none."""
    for name in ("targets", "labels", "_labels", "y"):
        labels = getattr(dataset, name, None)
        if labels is not None and len(labels) == len(dataset):
            return labels

    # a list of pairs of a file and a label
    for name in ("samples", "_samples"):
        files = getattr(dataset, name, None)
        if not isinstance(files, list) or len(files) != len(dataset):
            continue
        if all(isinstance(file, tuple) and len(file) == 2 for file in files):
            return [label for _, label in files]
    return None


def _path(dataset: Any, row: int) -> str:
    """Return ' (file)' for an image, or '' if torchvision keeps no list of files."""
    for name in ("samples", "_samples", "_image_files", "_images"):
        files = getattr(dataset, name, None)
        if not isinstance(files, list) or len(files) != len(dataset):
            continue

        # an entry is a file, or a tuple that begins with a file
        entry = files[row]
        if isinstance(entry, tuple | list):
            entry = entry[0]
        if isinstance(entry, str | Path):
            return f" ({entry})"
        return ""
    return ""
