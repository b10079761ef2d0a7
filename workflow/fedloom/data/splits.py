"""Draw a test split where a dataset has no official one."""

from typing import NamedTuple

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.seeds import numpy_generator


class _Cells(NamedTuple):
    """The images of a dataset in cells. A cell holds the images of one class in one domain.

    Cells are ordered by class, and within a class by domain.
    """

    # rows of the images, sorted by cell and shuffled within a cell, [N]
    order: np.ndarray
    # position of each cell's first image in `order`, [cells]
    starts: np.ndarray
    # number of images of each cell, [cells]
    sizes: np.ndarray
    # number of each cell's class and of its domain, [cells]
    label: np.ndarray
    domain: np.ndarray


def fixed_test_split(
    labels: np.ndarray, domains: np.ndarray, fraction: float
) -> tuple[np.ndarray, str]:
    """Choose the same test images on every call; return them, bool [N], and the rule in words.

    The split is stratified as finely as the numbers of images allow:

    1. Sort images by class, then by domain, then at random, and take every (1 / fraction)-th. Of
       each class in each domain, one image stays for training.
    2. This is unfair if a class lacks more than one test image, or if a large domain has no test
       image. An example are writers who wrote every letter once. Then take `fraction` of every
       class, within one image, and of every domain as nearly as the classes allow. Of each class,
       one image stays for training.

    With a `fraction` of 1, all images are test images. Raises a FedLoomError if each class has one
    image only.
    """
    if fraction == 1:
        return np.ones(len(labels), bool), "all images"
    if len(np.unique(labels)) == len(labels):
        raise FedLoomError(
            f"each of {len(labels)} classes has one image, which leaves none to test on; add "
            "images, or take a dataset with an official test split"
        )

    # take every (1 / fraction)-th image in order, but never a whole cell
    cells = _cells(labels, domains)
    chosen = np.diff(np.floor(np.arange(len(labels) + 1) * fraction + 0.5)) > 0
    full = np.minimum.reduceat(chosen, cells.starts)
    chosen[cells.starts[full]] = False

    several_domains = np.ptp(cells.domain) > 0
    rule = f"{fraction:.6g} of every class"
    if several_domains:
        rule += " in every domain"

    # if that is unfair to a class or a domain, take shares of classes and of domains
    if not _is_sound(cells, np.add.reduceat(chosen.astype(int), cells.starts), fraction):
        taken = _by_class_and_by_domain(cells, fraction)
        position = np.arange(len(labels)) - np.repeat(cells.starts, cells.sizes)
        chosen = position < np.repeat(taken, cells.sizes)
        rule = (
            f"{fraction:.6g} of all images, but not of every class, where there are too few images"
        )
        if several_domains:
            rule = (
                f"{fraction:.6g} of every class and {fraction:.6g} of every domain, but not of "
                "every class in every domain, where there are too few images"
            )

    test = np.zeros(len(labels), bool)
    test[cells.order] = chosen
    return test, rule


def _cells(labels: np.ndarray, domains: np.ndarray) -> _Cells:
    """Sort images by class, then by domain, then at random; return their cells."""
    order = numpy_generator(0, "test split").permutation(len(labels))
    order = order[np.lexsort((domains[order], labels[order]))]
    _, label = np.unique(labels[order], return_inverse=True)
    _, domain = np.unique(domains[order], return_inverse=True)
    starts = np.flatnonzero(np.r_[True, (np.diff(label) != 0) | (np.diff(domain) != 0)])
    return _Cells(order, starts, np.diff(np.r_[starts, len(order)]), label[starts], domain[starts])


def _is_sound(cells: _Cells, taken: np.ndarray, fraction: float) -> bool:
    """Return True if `taken`, the number of test images of each cell [cells], is fair.

    It is fair if every class has its share, less at most one image, and if every domain has a test
    image that is large enough for one.
    """
    # how far a class is below its share
    short = np.bincount(cells.label, fraction * cells.sizes - taken)

    # domains whose share is an image or more; that keep an image of each class if they give one;
    # and that give none
    due = np.bincount(cells.domain, fraction * cells.sizes) >= 1
    spare = np.bincount(cells.domain, cells.sizes - 1) >= 1
    without = np.bincount(cells.domain, taken) == 0

    return bool(taken.any() and (short < 1 + 1e-9).all() and not (due & spare & without).any())


def _by_class_and_by_domain(cells: _Cells, fraction: float) -> np.ndarray:
    """Choose how many test images each cell gives, [cells], so that classes and domains are fair.

    1. Every cell gives its share rounded down.
    2. While a class lacks images, cells of it give one more, in this order: the more their domain
       is owed from this class and earlier ones, the earlier; after these, cells that would give
       their last image; at the end, cells whose share is a whole number.
    """
    # the shares of cells, exact and rounded down, and the numbers of test images of classes
    exact = fraction * cells.sizes
    taken = np.floor(exact).astype(int)
    shares = _shares_of_classes(np.bincount(cells.label, cells.sizes).astype(int), fraction)

    # how many images each domain is still owed from earlier classes; tiny numbers break ties
    rng = numpy_generator(0, "test split of domains")
    owed = rng.random(cells.domain.max() + 1) * 1e-6
    for label, share in enumerate(shares):
        own = np.flatnonzero(cells.label == label)

        # the order in which cells give one image more
        due = exact[own] - taken[own] + owed[cells.domain[own]]
        is_last_image = taken[own] + 1 == cells.sizes[own]
        is_whole_share = exact[own] == taken[own]
        first = own[np.lexsort((-due, is_last_image, is_whole_share))]

        missing = max(0, share - taken[own].sum())
        taken[first[:missing]] += 1
        owed[cells.domain[own]] += exact[own] - taken[own]
    return taken


def _shares_of_classes(sizes: np.ndarray, fraction: float) -> np.ndarray:
    """Choose how many test images each class gives, int [C], fewer than its `sizes` [C].

    Shares are rounded so that their sum is the share of the whole dataset, and at least one image.
    A class of one image gives none; other classes give more instead.
    """
    # round so that the sum is the share of the dataset, but leave one image of each class
    shares = np.diff(np.floor(np.r_[0, np.cumsum(sizes)] * fraction + 0.5)).astype(int)
    total = max(1, shares.sum())
    shares = np.minimum(shares, sizes - 1)

    # the classes that can give one more; first those that are furthest below their share
    short = fraction * sizes - shares
    able = np.flatnonzero((shares < sizes - 1) & (short > 0))
    able = able[np.argsort(-short[able], kind="stable")]
    shares[able[: total - shares.sum()]] += 1
    return shares
