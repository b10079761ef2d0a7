"""Give every client most of its images from few classes (PFPT, Section 4)."""

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import PositiveShare
from fedloom.config.partitions import ClientScheme
from fedloom.data.schemes.dealing import deal_classes, largest_remainder

# a partition is refused if a client's dominant share falls short by more than this
LOST = 0.1


class Imbalance(ClientScheme):
    """Most images of every client are of a few classes, the client's dominant ones, and the rest
    are of all other classes. Clients are of equal size (PFPT, Section 4).
    """

    dominant_share: PositiveShare = 0.99
    """Share of a client's images that are of its dominant classes."""
    dominant_classes: PositiveShare = 0.1
    """Share of the classes that dominate a client, but at least one class."""


def divide(labels: np.ndarray, settings: JsonDict, rng: np.random.Generator) -> np.ndarray:
    """Give each client `dominant_share` of its images from `dominant_classes` of the classes.

    Clients are of equal size, and all images are dealt out:

    1. Images of a class go to the clients that the class dominates: as many and as evenly as
       possible, but at most `dominant_share` of a client's images.
    2. The rest goes to other clients.
    3. If other clients have no room left, the rest goes to clients that the class dominates.

    Raises a FedLoomError if a client's dominant share falls short by more than `LOST`.
    """
    clients = settings["clients"]
    share = settings["dominant_share"]
    classes, column, supply = np.unique(labels, return_inverse=True, return_counts=True)
    dominant = _deal_dominant(len(classes), settings, rng)

    # the number of images of each client, and how many of them are of its dominant classes; chance
    # decides which clients get the images that rounding leaves over
    sizes = largest_remainder(len(labels), np.ones(clients))
    due = largest_remainder(round(share * len(labels)), sizes)
    order = rng.permutation(clients)
    sizes = sizes[order]
    due = due[order]

    # images of dominant classes
    counts = _hand_out(supply, due, dominant, rng)  # [K, C]
    own = counts.sum(1) / np.maximum(sizes, 1)
    if own.min() < share - LOST:
        each = dominant[0].sum()
        raise FedLoomError(
            f"client {own.argmin()} would have {own.min():.0%} of its images of its {each} "
            f"dominant classes, not {share:.0%}; clients x {each} must be a multiple of the "
            f"{len(classes)} classes, and these of about equal size"
        )

    # hand out the rest, first to clients that other classes dominate
    for allowed in (~dominant, np.ones_like(dominant)):
        counts += _hand_out(supply - counts.sum(0), sizes - counts.sum(1), allowed, rng)

    # choose the images at random
    owner = np.empty(len(labels), int)
    for c in range(len(classes)):
        owner[column == c] = rng.permutation(np.repeat(np.arange(clients), counts[:, c]))
    return owner


def divide_pooled(labels: np.ndarray, settings: JsonDict, rng: np.random.Generator) -> np.ndarray:
    """Give `dominant_share` of every class to the clients that it dominates, the rest to everyone.

    PFPT divides each of its four data sets like this (Section 4). The clients that a class
    dominates get equal parts of its share. The rest of all classes is pooled and dealt evenly to
    all clients. The sizes of clients differ like the sizes of classes, and any number of classes
    can be divided.
    """
    clients = settings["clients"]
    share = settings["dominant_share"]
    classes, column = np.unique(labels, return_inverse=True)
    dominant = _deal_dominant(len(classes), settings, rng)

    # deal the share of each class in turns to the clients that it dominates
    owner = np.full(len(labels), -1)
    for c in range(len(classes)):
        rows = rng.permutation(np.flatnonzero(column == c))
        own = rows[: round(share * len(rows))]
        holders = rng.permutation(np.flatnonzero(dominant[:, c]))
        owner[own] = holders[np.arange(len(own)) % len(holders)]

    # deal the rest of all classes
    pool = np.flatnonzero(owner < 0)
    owner[pool] = rng.permutation(clients)[rng.permutation(len(pool)) % clients]
    return owner


def _deal_dominant(classes: int, settings: JsonDict, rng: np.random.Generator) -> np.ndarray:
    """Choose the classes that dominate each client, equally many for all clients, bool [K, C]."""
    each = max(1, round(classes * settings["dominant_classes"]))
    return deal_classes(settings["clients"], each, classes, "dominant_classes", rng)


def _hand_out(
    supply: np.ndarray, demand: np.ndarray, allowed: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Hand out as many images as possible; return how many of each class a client gets, [K, C].

    Class c has supply[c] images, client k takes demand[k] images, and allowed[k, c] says whether
    client k may get images of class c. The result is a maximum flow over the allowed pairs:

    - A client's classes share its demand as evenly as possible.
    - Every class gives the same part of its supply, if such a flow is large enough.
    """
    clients, classes = allowed.shape
    if not demand.any():
        return np.zeros(allowed.shape, int)

    # in a random order, so that no client and no class comes first
    rows = rng.permutation(clients)
    columns = rng.permutation(classes)
    supply = supply[columns]
    allowed = allowed[rows][:, columns]
    demand = demand[rows]

    def flow(per_class: np.ndarray, per_pair: np.ndarray) -> np.ndarray:
        """Return the greatest flow [K, C] of at most `per_class` [C] and `per_pair` [K, C]."""
        # imported here, because a plan imports schemes only for their keys
        import scipy

        # edges lead from a source (the last node but one) over clients and classes to a sink (the
        # last node)
        graph = np.zeros((clients + classes + 2, clients + classes + 2), np.int32)
        graph[-2, :clients] = demand
        graph[:clients, clients:-2] = per_pair
        graph[clients:-2, -1] = per_class
        flows = scipy.sparse.csgraph.maximum_flow(
            scipy.sparse.csr_array(graph), len(graph) - 2, len(graph) - 1
        ).flow
        return flows.toarray()[:clients, clients:-2]

    # even parts, and the largest flow that any parts allow
    classes_per_client = np.maximum(allowed.sum(1), 1)
    clients_per_class = np.maximum(allowed.sum(0), 1)
    even = allowed * np.minimum.outer(demand / classes_per_client, supply / clients_per_class)
    possible = flow(supply, allowed * supply).sum()

    # try the same part of every class; until the flow is the largest one, allow less even parts
    slack = 1.0
    dealt = flow(largest_remainder(demand.sum(), supply), np.ceil(even))
    while dealt.sum() < possible:
        dealt = flow(supply, np.ceil(slack * even))
        slack *= 1.25

    counts = np.empty((clients, classes), int)
    counts[np.ix_(rows, columns)] = dealt
    return counts
