"""Which of the listed images a dataset is made of; the same ones in every run."""

import logging
from typing import Any

import numpy as np

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.seeds import numpy_generator
from fedloom.data.image_list import NO_DOMAIN
from fedloom.data.schemes.shares import largest_remainder

log = logging.getLogger(__name__)


def of_classes(
    labels: np.ndarray, classes: list[str], names: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the images of some classes, which are numbered anew in the order of `names`.

    Args:
        labels: int [N].

    Returns:
        The new labels [N], -1 for images of other classes, and the chosen images, bool [N].

    Raises:
        FedLoomError: there is no class of a name, or no image of it.
    """
    number = np.full(len(classes), -1)
    for new, name in enumerate(names):
        if name not in classes:
            hint = suggestion(name, classes)
            raise FedLoomError(f"keep_classes: no class '{name}'; {hint[:200]}")
        number[classes.index(name)] = new
    renumbered = number[labels]
    empty = np.setdiff1d(np.arange(len(names)), renumbered)
    if len(empty):
        raise FedLoomError(f"keep_classes: no image of class '{names[empty[0]]}'; leave it out")
    return renumbered, renumbered >= 0


def of_large_domains(domains: np.ndarray, training: np.ndarray, least: int) -> np.ndarray:
    """Choose the images of the domains that have enough training images.

    Args:
        domains: str [N].
        training: bool [N]; all images that count, where there is no test split yet.
        least: number of training images.

    Returns:
        bool [N]

    Raises:
        FedLoomError: there is no such domain.
    """
    names, domain = np.unique(domains, return_inverse=True)
    counts = np.bincount(domain[training], minlength=len(names))
    large = (counts >= least) | (names == NO_DOMAIN)
    if not (counts >= least).any():
        raise FedLoomError(
            f"min_images_per_domain: none of {len(names)} domains has {least} training images, the "
            f"largest has {counts.max()}"
        )
    log.info("%d of %d domains have %d training images", (counts >= least).sum(), len(names), least)
    return large[domain]


def of_splits(
    labels: np.ndarray,
    test: np.ndarray,
    domains: np.ndarray,
    names: list[str],
    settings: dict[str, Any],
) -> np.ndarray:
    """Choose training images by `first_per_domain` and `long_tail`, and both halves by the caps.

    Args:
        labels: int [N].
        test: bool [N].
        domains: str [N].
        names: of the C classes.

    Returns:
        bool [N]

    Raises:
        FedLoomError: a class would lose all its training images.
    """
    chosen, classes = np.ones(len(labels), bool), len(names)
    if "first_per_domain" in settings:
        for domain in np.unique(domains[~test]):
            rows = np.flatnonzero((domains == domain) & ~test)
            chosen[rows[settings["first_per_domain"] :]] = False
        lost = np.setdiff1d(labels[~test], labels[~test & chosen])
        if len(lost):
            raise FedLoomError(
                f"first_per_domain: {settings['first_per_domain']} images of every domain leave "
                f"class '{names[lost[0]]}' none to train on; raise it"
            )
    if "long_tail" in settings:
        rows = np.flatnonzero(~test & chosen)
        profile = long_tail(np.bincount(labels[rows], minlength=classes), **settings["long_tail"])
        chosen[rows] = _drawn(labels[rows], profile, "long tail")
    for key, half in (("max_train_per_class", ~test), ("max_test_per_class", test)):
        if key in settings:
            rows = np.flatnonzero(half & chosen)
            chosen[rows] = _drawn(labels[rows], np.full(classes, settings[key]), key)
    for key, half in (("max_train", ~test), ("max_test", test)):
        rows = np.flatnonzero(half & chosen)
        if settings.get(key, len(rows)) < len(rows):
            counts = np.bincount(labels[rows], minlength=classes)
            fewer = largest_remainder(settings[key], counts)
            if key == "max_train" and ((fewer == 0) & (counts > 0)).any():
                raise FedLoomError(
                    f"max_train: {settings[key]} images leave class "
                    f"{np.flatnonzero((fewer == 0) & (counts > 0))[0]} none to train on; raise it"
                )
            chosen[rows] = _drawn(labels[rows], fewer, key)
    return chosen


def long_tail(counts: np.ndarray, factor: float) -> np.ndarray:
    """Return the numbers of images of an exponential profile (Cao et al., LDAM, NeurIPS 2019).

    Class i of C keeps n * (1/factor)^(i/(C - 1)) images, rounded down, where n is the number of the
    largest class: the first class has `factor` times as many images as the last one.

    Args:
        counts: [C] of the training images, in the order of classes.

    Returns:
        int [C], at most `counts`.

    Raises:
        FedLoomError: a class would have none.
    """
    exponents = np.arange(len(counts)) / max(1, len(counts) - 1)
    profile = np.floor(counts.max() * (1 / factor) ** exponents + 1e-9).astype(int)
    profile = np.minimum(profile, counts)
    if (profile == 0).any():
        raise FedLoomError(
            f"long_tail: factor {factor:g} leaves no image of class {(profile == 0).argmax()}, as "
            f"the largest class has {counts.max()}; lower it"
        )
    return profile


def _drawn(labels: np.ndarray, counts: np.ndarray, purpose: str) -> np.ndarray:
    """Draw `counts` [C] images of each class; return them as bool [N]."""
    rng = numpy_generator(0, purpose)
    chosen = np.zeros(len(labels), bool)
    for label, count in enumerate(counts):
        chosen[rng.permutation(np.flatnonzero(labels == label))[:count]] = True
    return chosen
