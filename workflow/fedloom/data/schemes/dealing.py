"""Deal images and classes to clients, for several schemes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict

Divide = Callable[[np.ndarray, JsonDict, np.random.Generator], np.ndarray]


class ImageGroup(NamedTuple):
    """Images that are divided separately from all others.

    Attributes:
        name: how an error names the group after "client 3", for example " of domain 'ink'".
        images: bool [N], True for the images of the group.
        divide: returns the client of every training image of the group, counted from 0.
        settings: the argument `settings` of `divide`; its `clients` is the number of clients.
    """

    name: str
    images: np.ndarray
    divide: Divide
    settings: JsonDict


def largest_remainder(total: int, shares: np.ndarray) -> np.ndarray:
    """Divide `total` by largest remainders in proportion to `shares` [K]; return integers [K]."""
    exact = total * shares / shares.sum()
    counts = np.floor(exact).astype(int)
    rest = np.argsort(-(exact - counts), kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return counts


def deal(rows: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Deal rows at random to K clients in proportion to `shares` [K]; return each row's client."""
    return rng.permutation(np.repeat(np.arange(len(shares)), largest_remainder(len(rows), shares)))


def deal_classes(
    clients: int, each: int, classes: int, option: str, rng: np.random.Generator
) -> np.ndarray:
    """Choose `each` classes for every client, bool [K, C].

    The numbers of clients of any two classes differ by at most one. Raises a FedLoomError if a
    class would have no client; the error names the `option` to raise.
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
