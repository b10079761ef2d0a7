"""Predict the classes of many images, which are read one after the other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from fedloom.common.errors import FedLoomError
from fedloom.data.image_list import Item
from fedloom.machine.memory import CACHED_AT_ONCE
from fedloom.machine.process_log import progress
from fedloom.models.images import Preparation, UnreadableError, in_parts, read_pixels

if TYPE_CHECKING:
    import pandas as pd


class Answering(Protocol):
    """A model that answers images."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the C classes."""
        ...

    @property
    def transform(self) -> Preparation:
        """Return what makes pixels of an image."""
        ...

    def module(self, pixels: Tensor) -> Tensor:
        """Return logits [N, C] for pixels, uint8 [N, channels, H, W]."""
        ...


class Predictions(NamedTuple):
    """The predictions for images, and the images that could not be read.

    Attributes:
        table: a row for each image and rank, with the columns image, rank, class and probability.
        skipped: a line for each image that could not be read.
    """

    table: "pd.DataFrame"
    skipped: list[str]


def predict_items(
    model: Answering,
    items: Sequence[Item],
    top_k: int = 1,
    skip_unreadable: bool = False,
    shows_progress: bool = False,
) -> Predictions:
    """Return the `top_k` most probable classes of each image.

    Args:
        skip_unreadable: leave out images that cannot be read, instead of an error.
        shows_progress: log a progress bar.

    Raises:
        FedLoomError: an image cannot be read, or `top_k` is not a number of classes.
    """
    import pandas as pd

    count = len(model.classes)
    if not 1 <= top_k <= count:
        raise FedLoomError(f"top_k: must be from 1 to {count}, the number of classes, got {top_k}")

    names: list[str] = []
    skipped: list[str] = []
    chosen: list[Tensor] = []
    probabilities: list[Tensor] = []
    with progress(len(items), "images") as bar:
        if not shows_progress:
            bar.disable = True
        for part in in_parts(items, CACHED_AT_ONCE):
            # read the images
            read: list[Tensor] = []
            for item in part:
                try:
                    read.append(read_pixels(item, model.transform))
                except UnreadableError as error:
                    if not skip_unreadable:
                        raise
                    skipped.append(str(error))
                    continue
                names.append(item.name)
            bar.update(len(part))

            # rank the classes by logits, as an evaluation does: probabilities may round to equal
            if read:
                logits = model.module(torch.stack(read)).double().cpu()
                order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
                chosen.append(order)
                probabilities.append(logits.softmax(-1).gather(-1, order))

    if not chosen:
        chosen = [torch.zeros(0, top_k, dtype=torch.int64)]
        probabilities = [torch.zeros(0, top_k)]
    labels = torch.cat(chosen).flatten().tolist()
    table = pd.DataFrame(
        {
            "image": pd.Series([name for name in names for _ in range(top_k)], dtype="str"),
            "rank": [*range(1, top_k + 1)] * len(names),
            "class": pd.Series([model.classes[label] for label in labels], dtype="str"),
            "probability": torch.cat(probabilities).flatten().numpy(),
        }
    )
    return Predictions(table, skipped)
