"""Divide images by label proportions from a symmetric Dirichlet distribution."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import Number
from fedloom.config.partitions import ClientScheme, MinImages
from fedloom.data.schemes.dealing import deal

# the most draws until every client has `min_images`; they take a minute on CIFAR-10
MOST_DRAWS = 20_000


class Dirichlet(ClientScheme):
    """Label proportions are drawn from a symmetric Dirichlet distribution."""

    alpha: Annotated[Number, Field(gt=0)]
    """Concentration of the Dirichlet distribution; the smaller it is, the more the clients
    differ."""
    kind: Literal["client", "class", "class_capped"]
    """Which proportions are drawn. `client`: each client draws proportions over classes, and
    clients are of equal size. `class`: each class draws proportions over clients. `class_capped`:
    classes do so in turn, and a client that already holds its equal share of all images gets none
    of the classes that follow (released code of FedPHA and FedOTP)."""
    min_images: MinImages = None


def divide(labels: np.ndarray, settings: JsonDict, rng: np.random.Generator) -> np.ndarray:
    """Divide images by label proportions from Dir(alpha), in the way of `kind`.

    - `client` (PEP-FedPT after Acar et al.; PFPT's text): each client draws proportions over
      classes. Then clients draw their images one by one, in random turns. A class without images
      left drops out.
    - `class` (pFedPG; PFPT's released code) and `class_capped`: each class draws proportions over
      clients. This is repeated until every client has `min_images`. Raises a FedLoomError after
      `MOST_DRAWS` draws.
    """
    clients = settings["clients"]
    alpha = settings["alpha"]
    classes, column = np.unique(labels, return_inverse=True)

    # classes draw proportions over clients
    least = settings.get("min_images", 0)
    if settings["kind"] in ("class", "class_capped"):
        for _ in range(MOST_DRAWS):
            owner = _by_class(column, len(classes), settings, rng)
            if np.bincount(owner, minlength=clients).min() >= least:
                return owner
        raise FedLoomError(
            f"min_images: in {MOST_DRAWS:,} draws of alpha {alpha:g}, some of {clients} clients "
            f"always had fewer than {least} images; use fewer clients or a larger alpha"
        )

    # clients draw proportions over classes [K, C]; each class is a stack of images in random order
    owner = np.empty(len(labels), int)
    wanted = rng.dirichlet(np.full(len(classes), alpha), clients)
    stacks = [list(rng.permutation(np.flatnonzero(column == c))) for c in range(len(classes))]
    left = np.array([len(stack) for stack in stacks])

    # clients take their images one by one, in random turns
    for client in rng.permutation(np.arange(len(labels)) % clients):
        odds = wanted[client] * (left > 0)
        if not odds.sum() > 0:
            # the client's classes have no images left: take any image
            odds = left
        c = rng.choice(len(classes), p=odds / odds.sum())
        owner[stacks[c].pop()] = client
        left[c] -= 1
    return owner


def _by_class(
    column: np.ndarray, classes: int, settings: JsonDict, rng: np.random.Generator
) -> np.ndarray:
    """Return the client of every image [N]; each class in `column` [N] draws proportions."""
    clients = settings["clients"]
    owner = np.empty(len(column), int)
    held = np.zeros(clients, int)

    # the images of one class after the other
    for c in range(classes):
        rows = np.flatnonzero(column == c)
        proportions = rng.dirichlet(np.full(clients, settings["alpha"]))
        if settings["kind"] == "class_capped":
            # clients that hold their share of all images get nothing
            room = held < len(column) / clients
            proportions = np.where(room, proportions, 0.0)
            # if all proportions are 0, take equal ones: with a small alpha, numbers underflow to 0
            if not proportions.sum() > 0:
                proportions = room.astype(float)

        owner[rows] = deal(rows, proportions, rng)
        held += np.bincount(owner[rows], minlength=clients)
    return owner
