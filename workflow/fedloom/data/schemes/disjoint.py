"""Give every client classes that no other client holds (FedPHA, Section 4.1)."""

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.config.partitions import ClientScheme


class Disjoint(ClientScheme):
    """Every client holds classes that no other client holds, about equally many (FedPHA)."""

    rest_to_last: bool = False
    """All clients but the last hold round(classes / clients) classes, and the last one holds the
    rest (FedPHA's released code). By default, the numbers of classes differ by at most one."""


def divide(labels: np.ndarray, settings: JsonDict, rng: np.random.Generator) -> np.ndarray:
    """Give each client classes that no other holds; `Disjoint` says how many."""
    clients = settings["clients"]
    classes, column = np.unique(labels, return_inverse=True)
    if clients > len(classes):
        raise FedLoomError(
            f"clients must be at most {len(classes)}, the number of classes, since no class has "
            f"two clients, got {clients}"
        )

    # about equally many classes for each client
    if not settings["rest_to_last"]:
        return rng.permutation(np.arange(len(classes)) % clients)[column]

    # equally many classes for each client, and the rest for the last one
    each = round(len(classes) / clients)
    if each * (clients - 1) >= len(classes):
        raise FedLoomError(
            f"rest_to_last: {clients - 1} clients with {each} classes each leave none of the "
            f"{len(classes)} for the last; use another number of clients, or leave it out"
        )
    return rng.permutation(np.minimum(np.arange(len(classes)) // each, clients - 1))[column]
