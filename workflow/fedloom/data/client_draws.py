"""Draw some of each client's training images: a few per class, or images for validation."""

import logging

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.ids import UNASSIGNED
from fedloom.common.seeds import numpy_generator

log = logging.getLogger(__name__)


def few_shots(labels: np.ndarray, owner: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Draw `shots` training images of each class for every client; return the drawn ones, bool [N].

    A client with fewer images of a class keeps all of them; the log says how often that happens.
    `labels` [N] and `owner` [N] are the class and the client of every training image.
    """
    # draw from each class of each client
    rng = numpy_generator(seed, "few shots")
    kept = np.zeros(len(labels), bool)
    pairs, counts = np.unique(np.stack([owner, labels], 1), axis=0, return_counts=True)
    for client, label in pairs:
        rows = np.flatnonzero((owner == client) & (labels == label))
        kept[rng.permutation(rows)[:shots]] = True

    few = (counts < shots).sum()
    if few:
        log.warning(
            "shots is %d, but clients hold fewer training images of a class %d times out of %d",
            shots,
            few,
            len(pairs),
        )
    return kept


def validation_split(labels: np.ndarray, owner: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Draw validation images from the training images; `study.tune` compares options by them.

    For each client: sort its images by class and draw every (1 / share)-th. At least one image of
    each class stays for training, and at least one image is drawn.

    Args:
        labels: class of every image, [N].
        owner: client of every training image, [N]; UNASSIGNED for all other images.
        share: share of each client's images to draw.
        seed: seed of the draw.

    Returns:
        The validation images, bool [N].

    Raises:
        FedLoomError: a client has no two images of one class.
    """
    rng = numpy_generator(seed, "validation")
    held = np.zeros(len(labels), bool)
    for client in np.unique(owner[owner != UNASSIGNED]):
        # the client's images by class, within a class at random
        rows = rng.permutation(np.flatnonzero(owner == client))
        rows = rows[np.argsort(labels[rows], kind="stable")]
        _, starts, counts = np.unique(labels[rows], return_index=True, return_counts=True)
        if counts.max() < 2:
            raise FedLoomError(
                f"client {client} has no two images of one class to hold one back for study.tune; "
                "leave tune out, use fewer clients, or raise shots"
            )

        # how many images of each class to draw: every (1 / share)-th, but not the whole class
        steps = np.diff(np.floor(np.arange(len(rows) + 1) * share + 0.5))
        taken = np.minimum(np.add.reduceat(steps, starts), counts - 1).astype(int)
        if not taken.any():
            taken[counts.argmax()] = 1

        # draw the first images of each class
        position = np.arange(len(rows)) - np.repeat(starts, counts)
        held[rows[position < np.repeat(taken, counts)]] = True
    return held
