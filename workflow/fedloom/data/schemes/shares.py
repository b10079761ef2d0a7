"""Round shares to whole numbers, and deal images and classes, for several schemes."""

import numpy as np

from fedloom.common.errors import FedLoomError


def largest_remainder(total: int, shares: np.ndarray) -> np.ndarray:
    """Divide `total` in proportion to `shares` [K] into whole numbers [K], each within one."""
    exact = total * shares / shares.sum()
    counts = np.floor(exact).astype(int)
    rest = np.argsort(-(exact - counts), kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return counts


def deal(rows: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Deal rows at random to clients, in proportion to `shares` [K]; return each one's client."""
    owners = np.repeat(np.arange(len(shares)), largest_remainder(len(rows), shares))
    return rng.permutation(owners)


def deal_classes(
    clients: int, each: int, classes: int, option: str, rng: np.random.Generator
) -> np.ndarray:
    """Choose `each` classes for every client; return them as bool [K, C].

    Classes are dealt evenly: the numbers of clients that get two classes differ by at most one.

    Raises:
        FedLoomError: a class that no client would get; names the `option` to raise.
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
