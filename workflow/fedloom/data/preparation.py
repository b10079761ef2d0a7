"""Prepare the images that a source lists for a store: which of them, of which classes and split.

Every source has these keys alike. They are applied in one order: names of the classes
(`class_names`), classes to keep (`keep_classes`), classes by domain (`class_per_domain`), domains
that are large enough (`min_images_per_domain`), the test split (`test_fraction`), the first images
of every domain (`first_per_domain`), the long tail (`long_tail`), and how many images each split
may have (`max_train_per_class`, `max_train` and the same of test images).
"""

import logging
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from fedloom.common.errors import FedLoomError, shortened, suggestion
from fedloom.common.seeds import numpy_generator
from fedloom.data.image_list import NO_DOMAIN, ImageList, Item, Prepared, check_columns
from fedloom.data.schemes.base import largest_remainder
from fedloom.data.splits import Split, fixed_test_split

log = logging.getLogger(__name__)


def prepared(listed: ImageList, settings: dict[str, Any]) -> Prepared:
    """Return the images that the store will hold, with their domains and their test split.

    The `settings` of the dataset lack the keys that its source has not.
    """
    check_columns(listed)
    if not len(listed.labels):
        raise FedLoomError(f"there are no images ({listed.provenance})")
    classes, labels = _class_names(listed, settings), listed.labels
    outside = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(outside):
        item = next(item for row, item in enumerate(listed.items()) if row == outside[0])
        line = f"label {labels[outside[0]]} is not in 0..{len(classes) - 1}"
        raise FedLoomError(f"{item.name}: {line}")
    kept = np.ones(len(labels), bool)  # of the images that the source lists
    domains = np.full(len(labels), "all") if listed.domains is None else listed.domains
    if "keep_classes" in settings:
        labels, kept = _of_classes(labels, classes, settings["keep_classes"])
        classes = settings["keep_classes"]
    if settings.get("class_per_domain"):
        own, classes = _per_domain(labels[kept], classes, domains[kept])
        labels = np.full(len(labels), -1)
        labels[kept] = own
    elif "class_per_domain" in settings:
        _log_shared(labels[kept], classes, domains[kept])
    for name in classes:
        if not isinstance(name, str) or not name.isprintable():
            raise FedLoomError(f"class {name!a}: a name that is not UTF-8 text; set class_names")
    if "min_images_per_domain" in settings:
        training = kept if listed.test is None else kept & ~listed.test
        kept &= _of_large_domains(domains, training, settings["min_images_per_domain"])
    if listed.test is None:
        split = fixed_test_split(labels[kept], domains[kept], settings["test_fraction"])
    else:
        split = Split(listed.test[kept], listed.test_split)
    log.info("%d of %d are test images: %s", split.test.sum(), kept.sum(), split.rule)
    stay = _of_splits(labels[kept], split.test, domains[kept], classes, settings)
    kept[kept] = stay
    if not kept.all():
        log.info("%d of %d listed images are kept", kept.sum(), len(kept))

    def items() -> Iterator[Item]:
        for item, keep in zip_longest(listed.items(), kept):
            if item is None or keep is None:
                got = "fewer" if item is None else "more"
                raise FedLoomError(f"the source lists {len(kept)} labels, but {got} items")
            if keep:
                yield item

    return Prepared(
        items=items,
        labels=labels[kept],
        classes=classes,
        provenance=listed.provenance,
        domains=domains[kept],
        test=split.test[stay],
        named=listed.named or "class_names" in settings,
        test_split=split.rule,
    )


def _class_names(listed: ImageList, settings: dict[str, Any]) -> list[str]:
    classes = settings.get("class_names", listed.classes)
    if len(classes) != len(listed.classes):
        line = f"class_names has {len(classes)} names for {len(listed.classes)} classes"
        raise FedLoomError(line)
    first: dict[str, int] = {}
    for label, name in enumerate(classes):
        if first.setdefault(name, label) != label:
            raise FedLoomError(
                f"classes {first[name]} and {label} are both called {name!a}; give every class "
                "another name (class_names, or where the names come from)"
            )
    return classes


def _of_classes(
    labels: np.ndarray, classes: list[str], names: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the images of the classes `names`, bool [N], and number them anew, -1 for others."""
    number = np.full(len(classes), -1)
    for new, name in enumerate(names):
        if name not in classes:
            hint = shortened(suggestion(name, classes))
            raise FedLoomError(f"keep_classes: no class '{name}'; {hint}")
        number[classes.index(name)] = new
    renumbered = number[labels]
    empty = np.setdiff1d(np.arange(len(names)), renumbered)
    if len(empty):
        raise FedLoomError(f"keep_classes: no image of class '{names[empty[0]]}'; leave it out")
    return renumbered, renumbered >= 0


def _per_domain(
    labels: np.ndarray, classes: list[str], domains: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Make a class "domain/class" of every class in every domain; return labels [N], and names."""
    names, domain = np.unique(domains.astype(str), return_inverse=True)
    if len(names) == 1:
        raise FedLoomError(
            f"class_per_domain: all images are of one domain ('{names[0]}'); leave it out, or say "
            "what the domains are"
        )
    cells, new = np.unique(domain * len(classes) + labels, return_inverse=True)
    pairs = [divmod(int(cell), len(classes)) for cell in cells]
    return new, [f"{names[where]}/{classes[label]}" for where, label in pairs]


def _log_shared(labels: np.ndarray, classes: list[str], domains: np.ndarray) -> None:
    """Log how many classes occur in more than one domain, and are one class each."""
    _, domain = np.unique(domains, return_inverse=True)
    cells = np.unique(domain * len(classes) + labels)
    shared = np.flatnonzero(np.bincount(cells % len(classes), minlength=len(classes)) > 1)
    if len(shared):
        log.info(
            "%d of %d classes, such as '%s', occur in more than one domain and are one class each; "
            "set class_per_domain: true to keep them apart",
            len(shared),
            len(classes),
            classes[shared[0]],
        )


def _of_large_domains(domains: np.ndarray, training: np.ndarray, least: int) -> np.ndarray:
    """Choose the images [N] of the domains that have `least` of the images `training`, bool [N]."""
    names, domain = np.unique(domains, return_inverse=True)
    counts = np.bincount(domain[training], minlength=len(names))
    large = counts >= least
    if not large.any():
        raise FedLoomError(
            f"min_images_per_domain: none of {len(names)} domains has {least} training images, the "
            f"largest has {counts.max()}"
        )
    log.info("%d of %d domains have %d training images", large.sum(), len(names), least)
    return (large | (names == NO_DOMAIN))[domain]


def _of_splits(
    labels: np.ndarray,
    test: np.ndarray,
    domains: np.ndarray,
    names: list[str],
    settings: dict[str, Any],
) -> np.ndarray:
    """Choose training images by `first_per_domain` and `long_tail`, and both halves by the caps.

    Every one of the C classes `names` keeps training images. Returns bool [N].
    """
    chosen, classes = np.ones(len(labels), bool), len(names)

    def draw(half: np.ndarray, key: str, numbers: np.ndarray) -> None:
        """Keep `numbers` [C] images of each class of those chosen in a half, bool [N]."""
        rng = numpy_generator(0, key)
        for label, number in enumerate(numbers):
            rows = np.flatnonzero(half & chosen & (labels == label))
            chosen[rng.permutation(rows)[number:]] = False

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
        counts = np.bincount(labels[~test & chosen], minlength=classes)
        draw(~test, "long tail", long_tail(counts, **settings["long_tail"]))
    for key, half in (("max_train_per_class", ~test), ("max_test_per_class", test)):
        if key in settings:
            draw(half, key, np.full(classes, settings[key]))
    for key, half in (("max_train", ~test), ("max_test", test)):
        counts = np.bincount(labels[half & chosen], minlength=classes)
        if settings.get(key, counts.sum()) < counts.sum():
            fewer = largest_remainder(settings[key], counts)
            lost = np.flatnonzero((fewer == 0) & (counts > 0))
            if key == "max_train" and len(lost):
                line = f"{settings[key]} images leave class {lost[0]} none to train on; raise it"
                raise FedLoomError(f"max_train: {line}")
            draw(half, key, fewer)
    return chosen


def long_tail(counts: np.ndarray, factor: float) -> np.ndarray:
    """Return the numbers of images of an exponential profile (Cao et al., LDAM, NeurIPS 2019).

    Class i of C keeps n * (1/factor)^(i/(C - 1)) of its `counts` [C] images, rounded down, where n
    is the number of the largest class. Each class keeps at least one.
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
