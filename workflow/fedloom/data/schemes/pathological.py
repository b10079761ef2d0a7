"""Give every client the same number of classes (SGPT, E.1)."""

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import Count
from fedloom.config.partitions import ClientScheme
from fedloom.data.schemes.dealing import deal, deal_classes


class Pathological(ClientScheme):
    """Every client holds the same number of classes (SGPT, E.1)."""

    classes_per_client: Count
    """Number of classes that every client holds."""


def divide(labels: np.ndarray, settings: JsonDict, rng: np.random.Generator) -> np.ndarray:
    """Give each client `classes_per_client` classes (SGPT, E.1).

    Clients of one class divide its images in proportion to draws from U(0.4, 0.6). Raises a
    FedLoomError if the dataset has fewer classes.
    """
    clients = settings["clients"]
    each = settings["classes_per_client"]
    classes = np.unique(labels)
    if each > len(classes):
        raise FedLoomError(
            f"classes_per_client must be at most {len(classes)}, the number of classes, got {each}"
        )

    # the classes of each client, and its shares of them, [K, C]
    held = deal_classes(clients, each, len(classes), "classes_per_client", rng)
    shares = np.where(held, rng.uniform(0.4, 0.6, held.shape), 0.0)

    # deal the images of each class in these shares
    owner = np.empty(len(labels), int)
    for column, label in enumerate(classes):
        rows = np.flatnonzero(labels == label)
        owner[rows] = deal(rows, shares[:, column], rng)
    return owner
