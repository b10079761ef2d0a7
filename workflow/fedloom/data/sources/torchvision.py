"""Any image classification dataset of torchvision, by the name of its class."""

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
from fedloom.config.datasets import ClassNames, ImageSource, TestFraction, described
from fedloom.data.image_list import ImageList, Item
from fedloom.machine.install import resource

# how torchvision's classes call the two halves of an official split, the first that fits
OFFICIAL = {"train": (True, False), "split": ("train", "test")}


class Torchvision(ImageSource):
    """Any classification dataset of torchvision.datasets."""

    name: str
    """Its class, as CIFAR100."""
    root: str
    """As torchvision takes it; relative to the checkout."""
    download: bool = False
    options: dict[str, Any] = Field({})
    """More arguments of the class, as {split: letters} for EMNIST."""
    train: dict[str, Any] = Field({})
    """Arguments for the training images; default: train=True or split=train."""
    test: dict[str, Any] = Field({})
    """Arguments for the test images, as {split: val} for ImageNet; default: train=False or
    split=test."""
    class_names: ClassNames = None
    test_fraction: TestFraction = 0.3


def read(settings: dict[str, Any]) -> ImageList:
    """List the images of a torchvision dataset; its official test split is kept if it has one."""
    import torchvision

    kind = _class(settings["name"])
    halves = [_open(kind, settings, arguments) for arguments in _arguments(kind, settings)]
    labels = [_labels(half) for half in halves]
    names = getattr(halves[0], "classes", None) or getattr(halves[0], "categories", None) or []
    names = [", ".join(c) if isinstance(c, tuple | list) else str(c) for c in names]

    def items() -> Iterator[Item]:
        for half, part, own in zip(halves, (" train", " test"), labels, strict=False):
            for row, label in enumerate(own):
                at = f"{'' if len(halves) == 1 else part} image {row}{_path(half, row)}"
                name = printable(f"torchvision {settings['name']}{at}")
                yield Item(name, partial(_load, half, row, int(label)))

    everything = np.concatenate(labels)
    version = f"torchvision {torchvision.__version__} {settings['name']}"
    return ImageList(
        items=items,
        labels=everything,
        classes=names or [str(number) for number in range(everything.max(initial=-1) + 1)],
        provenance=f"{version}: {described(settings)}",
        test=np.repeat([False, True], [*map(len, halves)]) if len(halves) == 2 else None,
        named=bool(names),
    )


def _class(name: str) -> type:
    from torchvision import datasets

    check_known(name, datasets.__all__, "torchvision has no dataset")
    return getattr(datasets, name)


def _arguments(kind: type, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return arguments of the training and the test half, or of the whole without halves."""
    names: set[str] = set()
    for parent in kind.__mro__:  # **kwargs are handed to a parent class
        parameters = inspect.signature(parent.__init__).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    arguments = {"root": str(resource(settings["root"])), "download": settings["download"]}
    common = {key: value for key, value in arguments.items() if key in names} | settings["options"]
    if settings["train"] or settings["test"]:
        halves = [settings["train"], settings["test"]]
    else:
        free = [key for key in OFFICIAL if key in names - settings["options"].keys()]
        halves = [{free[0]: value} for value in OFFICIAL[free[0]]] if free else [{}]
    return [common | half for half in halves]


def _open(kind: type, settings: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Return the dataset, whose files must be whole, and which must take the arguments."""
    if arguments.get("download"):
        Path(arguments["root"]).mkdir(parents=True, exist_ok=True)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        reason, cure = error, "set options, train or test to arguments that it takes"
    except Exception as error:  # damaged files raise whatever their format's reader does
        cure = f"put its unpacked files below {arguments.get('root')}, or "
        cure += "mend the connection" if settings["download"] else "set download: true"
        reason = f"not there, or not whole: {in_words(error)}"
    raise FedLoomError(f"torchvision {kind.__name__}: {one_line(reason).rstrip('.')}; {cure}")


def _load(dataset: Any, row: int, label: int) -> Image.Image:
    """Read an image, whose target must be the label that torchvision lists for it."""
    image, target = dataset[row]
    if int(target) != label:
        raise FedLoomError(
            f"torchvision {type(dataset).__name__}: image {row} has the target {target}, but is "
            f"listed with the label {label}; leave out options that choose other targets"
        )
    return image


def _labels(dataset: Any) -> np.ndarray:
    """Return class numbers [N]; images are read for them where torchvision keeps none apart."""
    kept = [getattr(dataset, name, None) for name in ("targets", "labels", "_labels", "y")]
    for files in (getattr(dataset, name, None) for name in ("samples", "_samples")):
        if isinstance(files, list) and all(isinstance(s, tuple) and len(s) == 2 for s in files):
            kept.append([label for _, label in files])
    targets = next((own for own in kept if own is not None and len(own) == len(dataset)), None)
    try:
        if targets is None:
            targets = (dataset[row][1] for row in range(len(dataset)))
        return np.array([int(target) for target in targets], int)
    except Exception as error:
        raise FedLoomError(
            f"torchvision {type(dataset).__name__}: labels cannot be listed ({in_words(error)}); "
            "mend or remove the image, or take a classification dataset"
        ) from None


def _path(dataset: Any, row: int) -> str:
    """Return ' (file)' for an image, or '' where torchvision keeps no list of files."""
    for name in ("samples", "_samples", "_image_files", "_images"):
        files = getattr(dataset, name, None)
        if isinstance(files, list) and len(files) == len(dataset):
            entry = files[row][0] if isinstance(files[row], tuple | list) else files[row]
            return f" ({entry})" if isinstance(entry, str | Path) else ""
    return ""
