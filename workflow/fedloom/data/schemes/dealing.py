"""Deal images and classes to clients, for several schemes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedloom.common.errors import FedLoomError

Divide = Callable[[np.ndarray, dict[str, Any], np.random.Generator], np.ndarray]


class ImageGroup(NamedTuple):
    """Images that are divided by themselves.

    Attributes:
        name: as an error has it, after "client 3"; " of domain 'ink'", for one.
        images: bool [N] of all images.
        divide: returns the client of every training image of the group, from 0 on.
        settings: what `divide` takes; `clients` is the number of the group's clients.
    """

    name: str
    images: np.ndarray
    divide: Divide
    settings: dict[str, Any]


def largest_remainder(total: int, shares: np.ndarray) -> np.ndarray:
    """Divide `total` in proportion to `shares` [K] into whole numbers [K], each within one."""
    exact = total * shares / shares.sum()
    counts = np.floor(exact).astype(int)
    rest = np.argsort(-(exact - counts), kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return counts


def deal(rows: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Deal rows at random to clients, by `shares` [K]; return the client of each row."""
    return rng.permutation(np.repeat(np.arange(len(shares)), largest_remainder(len(rows), shares)))


def deal_classes(
    clients: int, each: int, classes: int, option: str, rng: np.random.Generator
) -> np.ndarray:
    """Choose `each` classes for every client, bool [K, C].

    Classes get equally many clients, within one. A class that no client would get is an error,
    which names the `option` to raise.
    """
    if clients * each < classes:
        raise FedLoomError(
            f"{clients} clients x {each} classes leave some of the {classes} classes "
            f"without a client; raise clients or {option}"
        )
    held = np.zeros((clients, classes), bool)
    for client in range(clients):
        rarest = np.lexsort((rng.random(classes), held.sum(0)))
        held[client, rarest[:each]] = True
    return held
