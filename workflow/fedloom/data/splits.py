"""Draw a test split where a dataset has no official one."""

from typing import NamedTuple

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.common.seeds import numpy_generator


class _Cells(NamedTuple):
    """The images of one class in one domain are a cell; cells are ordered by class."""

    # rows of the images by cell, within a cell at random, [N]
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
    """Choose test images, bool [N], the same ones on every call; also return the rule as text.

    They are stratified as finely as the counts allow. Images are lined up by class, within it by
    domain, within that at random, and every 1/fraction-th is taken, but one image of each class in
    each domain is left to train on. If that costs a class more test images than one, or leaves a
    large domain with none (writers, say, who wrote every letter once), `fraction` holds for every
    class by itself, within one image, and for every domain by itself as nearly as the classes
    allow; a class keeps a training image.
    """
    if fraction == 1:
        return np.ones(len(labels), bool), "all images"
    if len(np.unique(labels)) == len(labels):
        raise FedLoomError(
            f"each of {len(labels)} classes has one image, which leaves none to test on; add "
            "images, or take a dataset with an official test split"
        )

    # every 1/fraction-th image in order, but not the last one of a cell
    cells = _cells(labels, domains)
    chosen = np.diff(np.floor(np.arange(len(labels) + 1) * fraction + 0.5)) > 0
    full = np.minimum.reduceat(chosen, cells.starts)
    chosen[cells.starts[full]] = False

    several_domains = np.ptp(cells.domain) > 0
    rule = f"{fraction:.6g} of every class"
    if several_domains:
        rule += " in every domain"

    # where that is not fair to a class or a domain, shares of classes and of domains
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
    """Line up images by class, within it by domain, within that at random."""
    order = numpy_generator(0, "test split").permutation(len(labels))
    order = order[np.lexsort((domains[order], labels[order]))]
    _, label = np.unique(labels[order], return_inverse=True)
    _, domain = np.unique(domains[order], return_inverse=True)
    starts = np.flatnonzero(np.r_[True, (np.diff(label) != 0) | (np.diff(domain) != 0)])
    return _Cells(order, starts, np.diff(np.r_[starts, len(order)]), label[starts], domain[starts])


def _is_sound(cells: _Cells, taken: np.ndarray, fraction: float) -> bool:
    """Return True if `taken` [cells] gives every class its share, and every domain some images."""
    # how far a class is below its share
    short = np.bincount(cells.label, fraction * cells.sizes - taken)

    # domains that are due an image, can spare one beside one of each class, and give none
    due = np.bincount(cells.domain, fraction * cells.sizes) >= 1
    spare = np.bincount(cells.domain, cells.sizes - 1) >= 1
    without = np.bincount(cells.domain, taken) == 0

    return bool(taken.any() and (short < 1 + 1e-9).all() and not (due & spare & without).any())


def _by_class_and_by_domain(cells: _Cells, fraction: float) -> np.ndarray:
    """Choose how many images of each cell are test images, so that margins come before cells.

    A cell gives its share rounded down or up: down first, then up in the order of what its domain
    is still owed from the classes before, cells that keep a training image before those that do
    not.
    """
    # the shares of cells, rounded down, and those of classes
    exact = fraction * cells.sizes
    taken = np.floor(exact).astype(int)
    shares = _shares_of_classes(np.bincount(cells.label, cells.sizes).astype(int), fraction)

    # the images that each domain is owed of the classes before; ties are broken at random
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
    """Choose how many test images each class gives, int [C] less than `sizes` [C].

    Shares are rounded so that the whole set gives its own, at least one image; what a class of one
    image cannot give, others give.
    """
    # rounded so that they add up to the share of all, but one image of each class stays
    shares = np.diff(np.floor(np.r_[0, np.cumsum(sizes)] * fraction + 0.5)).astype(int)
    total = max(1, shares.sum())
    shares = np.minimum(shares, sizes - 1)

    # classes that can give one more, those first that are furthest below their share
    short = fraction * sizes - shares
    able = np.flatnonzero((shares < sizes - 1) & (short > 0))
    able = able[np.argsort(-short[able], kind="stable")]
    shares[able[: total - shares.sum()]] += 1
    return shares
