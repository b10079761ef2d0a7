"""Predict the classes of many images, which are read one after the other."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError
from fedloom.machine.memory import CACHED_AT_ONCE
from fedloom.models.classifier import Classifier
from fedloom.models.images import NewImage, Preparation, UnreadableError, read_pixels

if TYPE_CHECKING:
    import pandas as pd


class Predictions(NamedTuple):
    """The predictions for images, and the images that could not be read.

    Attributes:
        table: a row for each image and rank, with the columns image, rank, class and probability.
        skipped: a line for each image that could not be read.
    """

    table: "pd.DataFrame"
    skipped: list[str]


def _ignore(count: int) -> None:
    """Tell nobody how many images are done."""


def predict_images(
    images: Sequence[NewImage],
    module: Classifier,
    prepare: Preparation,
    classes: Sequence[str],
    top_k: int = 1,
    skip_unreadable: bool = False,
    advance: Callable[[int], object] = _ignore,
) -> Predictions:
    """Return the `top_k` most probable classes of each image.

    Args:
        images: the images.
        module: the model.
        prepare: makes the model's pixels of an image.
        classes: the names of the model's classes.
        skip_unreadable: leave out images that cannot be read, instead of an error.
        advance: is called with the number of images that are done since its last call.

    Raises:
        FedLoomError: an image cannot be read, or `top_k` is not a number of classes.
    """
    import pandas as pd

    count = len(classes)
    if not isinstance(top_k, Integral) or not 1 <= top_k <= count:
        raise FedLoomError(
            f"top_k: must be from 1 to {count}, the number of classes, got {top_k!r}"
        )

    names: list[str] = []
    skipped: list[str] = []
    labels: list[int] = []
    probabilities: list[float] = []
    for start in range(0, len(images), CACHED_AT_ONCE):
        part = images[start : start + CACHED_AT_ONCE]
        pixels = _read_part(part, prepare, skip_unreadable, names, skipped)
        if pixels:
            # rank the classes by logits, as an evaluation does: probabilities may round to equal
            logits = module(torch.stack(pixels)).double().cpu()
            order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
            labels += order.flatten().tolist()
            probabilities += logits.softmax(-1).gather(-1, order).flatten().tolist()
        advance(len(part))

    table = pd.DataFrame(
        {
            "image": pd.Series(np.repeat(names, top_k), dtype="str"),
            "rank": np.tile(np.arange(1, top_k + 1), len(names)),
            "class": pd.Series([classes[label] for label in labels], dtype="str"),
            "probability": pd.Series(probabilities, dtype="float64"),
        }
    )
    return Predictions(table, skipped)


def _read_part(
    images: Sequence[NewImage],
    prepare: Preparation,
    skip_unreadable: bool,
    names: list[str],
    skipped: list[str],
) -> list[Tensor]:
    """Return the pixels of the images that can be read, and add their names to `names`.

    A line about each other image is added to `skipped`.
    """
    pixels: list[Tensor] = []
    for image in images:
        try:
            pixels.append(read_pixels(image.item, prepare))
        except UnreadableError as error:
            if not skip_unreadable:
                raise
            skipped.append(str(error))
        else:
            names.append(image.name)
    return pixels
