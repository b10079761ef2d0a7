"""Any image classification dataset of torchvision, by the name of its class."""

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import Field

from fedloom.common.checkout import resource
from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.folders import is_folder, printable, walk
from fedloom.config.datasets import ClassNames, ImageSource, TestFraction, described
from fedloom.data.image_list import ImageList, Item
from fedloom.data.images import UNREADABLE

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
    """List the images of a torchvision dataset; its official test split is kept if it has one.

    Raises:
        FedLoomError: an unknown name, data that is not there, arguments that the class refuses, or
            targets that are no class numbers.
    """
    import torchvision

    kind = _class(settings["name"])
    if not settings["download"]:
        _check_files(str(resource(settings["root"])))
    halves = [_open(kind, settings, arguments) for arguments in _arguments(kind, settings)]
    labels = [_labels(half) for half in halves]
    names = _class_names(halves)

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


def _check_files(root: str) -> None:
    """Refuse pipes and links in circles, on which torchvision would hang.

    Raises:
        FedLoomError: names the file.
    """
    if not is_folder(root):
        return
    for _, _, entries in walk(root):
        for entry in entries:
            if Path(entry.path).exists() and not entry.is_file():
                path = printable(entry.path)
                raise FedLoomError(f"{path}: a pipe, socket or device, no file; remove it")


def _class(name: str) -> type:
    """Return the dataset's class.

    Raises:
        FedLoomError: there is none of that name.
    """
    from torchvision import datasets

    if name not in datasets.__all__ or not isinstance(getattr(datasets, name), type):
        raise FedLoomError(
            f"torchvision has no dataset '{name}'; {suggestion(name, datasets.__all__)}"
        )
    return getattr(datasets, name)


def _parameters(kind: type) -> set[str]:
    """Return the names of the arguments, with those that **kwargs hands to a parent class."""
    names: set[str] = set()
    for parent in kind.__mro__:
        parameters = inspect.signature(parent.__init__).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names


def _arguments(kind: type, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return arguments of the training and the test half, or of the whole without halves."""
    names = _parameters(kind)
    arguments = {"root": str(resource(settings["root"])), "download": settings["download"]}
    common = {key: value for key, value in arguments.items() if key in names} | settings["options"]
    if settings["train"] or settings["test"]:
        halves = [settings["train"], settings["test"]]
    else:
        free = [key for key in OFFICIAL if key in names - settings["options"].keys()]
        halves = [{free[0]: value} for value in OFFICIAL[free[0]]] if free else [{}]
    return [common | half for half in halves]


def _open(kind: type, settings: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Return the dataset.

    Raises:
        FedLoomError: its files are missing or damaged, or it refuses the arguments.
    """
    dataset: Any = object.__new__(kind)  # at hand in the errors of its __init__
    if arguments.get("download"):
        Path(arguments["root"]).mkdir(parents=True, exist_ok=True)
    try:
        dataset.__init__(**arguments)
    except (TypeError, ValueError) as error:
        hint = "set options, train or test to arguments that it takes"
        raise FedLoomError(f"torchvision {kind.__name__}: {_line(error)}; {hint}") from None
    except Exception as error:  # damaged files raise whatever their format's reader does
        reason = str(error) or type(error).__name__
        raise FedLoomError(_missing(dataset, settings, reason)) from None
    return dataset


def _missing(dataset: Any, settings: dict[str, Any], error: str) -> str:
    """Return one line that says what torchvision looked for, and where."""
    root = resource(settings["root"])
    looked = [str(value) for value in vars(dataset).values() if isinstance(value, str | Path)]
    if isinstance(getattr(dataset, "base_folder", None), str):  # CIFAR
        looked.append(f"{root}/{dataset.base_folder}")
    if isinstance(getattr(dataset, "resources", None), list):  # MNIST
        looked.append(f"{root}/{type(dataset).__name__}/raw")
    looked = [path for path in looked if path.startswith(f"{root}/")] or [f"{root}/"]
    at = min(looked, key=len)
    if settings["download"]:
        return (
            f"torchvision {settings['name']}: cannot be downloaded, or is damaged "
            f"({_line(error)}); mend the connection, or put its unpacked files at {at}"
        )
    return (
        f"torchvision {settings['name']}: not there, or not whole ({_line(error)}); put its "
        f"unpacked files at {at}, or set download: true"
    )


def _line(error: object) -> str:
    """Return an error's text as one line without a full stop."""
    return " ".join(str(error).split()).rstrip(".")


def _load(dataset: Any, row: int, label: int) -> Image.Image:
    """Read an image.

    Raises:
        FedLoomError: its target is not the label that torchvision lists for it.
    """
    image, target = dataset[row]
    if _number(dataset, target) != label:
        raise FedLoomError(
            f"torchvision {type(dataset).__name__}: image {row} has the target {target}, but is "
            f"listed with the label {label}; leave out options that choose other targets"
        )
    return image


def _number(dataset: Any, label: Any) -> int:
    """Return a target as the number of a class.

    Raises:
        FedLoomError: it is none.
    """
    try:
        return int(label)
    except (TypeError, ValueError):
        raise FedLoomError(
            f"torchvision {type(dataset).__name__}: its targets are no class numbers but "
            f"{type(label).__name__}; is it a classification dataset?"
        ) from None


def _labels(dataset: Any) -> np.ndarray:
    """Return class numbers [N]; images are read for them where torchvision keeps none apart."""
    targets = _targets(dataset)
    if targets is not None:
        return targets
    try:
        return np.array([_number(dataset, dataset[row][1]) for row in range(len(dataset))], int)
    except FedLoomError:
        raise
    except UNREADABLE as error:
        raise FedLoomError(
            f"torchvision {type(dataset).__name__}: unreadable image ({_line(error)}); it keeps no "
            "labels apart from images, so none can be skipped"
        ) from None


def _targets(dataset: Any) -> np.ndarray | None:
    """Return class numbers [N], or None where torchvision keeps none apart from images."""
    for name in ("targets", "labels", "_labels", "y"):
        targets = getattr(dataset, name, None)
        if targets is not None and len(targets) == len(dataset):
            return np.array([_number(dataset, label) for label in targets], int)
    for name in ("samples", "_samples"):
        targets = getattr(dataset, name, None)
        if isinstance(targets, list) and all(isinstance(s, tuple) and len(s) == 2 for s in targets):
            return np.array([_number(dataset, label) for _, label in targets], int)
    return None


def _path(dataset: Any, row: int) -> str:
    """Return ' (file)' for an image, or '' where torchvision keeps no list of files."""
    for name in ("samples", "_samples", "_image_files", "_images"):
        files = getattr(dataset, name, None)
        if isinstance(files, list) and len(files) == len(dataset):
            entry = files[row][0] if isinstance(files[row], tuple | list) else files[row]
            return f" ({entry})" if isinstance(entry, str | Path) else ""
    return ""


def _class_names(halves: list) -> list[str]:
    """Return the names of the classes, or [] where torchvision has none."""
    for name in ("classes", "categories"):
        names = getattr(halves[0], name, None)
        if names:
            return [", ".join(c) if isinstance(c, tuple | list) else str(c) for c in names]
    return []
