"""Prepare a source's list of images for the store: choose images, name classes, split off a test.

The keys for this are those that all sources share (`fedloom.config.datasets`). docs/data.md gives
the order in which they are applied.
"""

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import zip_longest

import numpy as np

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.ids import NO_DOMAIN
from fedloom.common.json_types import JsonDict
from fedloom.common.seeds import numpy_generator
from fedloom.data.image_list import ImageList, Item, Prepared, check_columns
from fedloom.data.labels import tidy
from fedloom.data.schemes.dealing import largest_remainder
from fedloom.data.splits import fixed_test_split

log = logging.getLogger(__name__)


def prepare(listed: ImageList, settings: JsonDict) -> Prepared:
    """Return the images that the store will hold, with their domains and their test split.

    `settings` are the keys of the dataset's entry. Keys that its source does not have are missing.
    """
    # what the source lists: labels, names of the classes, and domains
    check_columns(listed)
    if not len(listed.labels):
        raise FedLoomError(f"must have at least one image, got none ({listed.provenance})")
    classes = _class_names(listed, settings)
    labels = listed.labels
    _check_labels(labels, classes, listed.provenance)
    domains = listed.domains
    if domains is None:
        domains = np.full(len(labels), "all")

    # keep the chosen classes and the large domains: bool [N], True for the listed images to keep
    kept = np.ones(len(labels), bool)
    if "keep_classes" in settings:
        labels, kept = _choose_classes(labels, classes, settings["keep_classes"])
        classes = settings["keep_classes"]
    _check_names([*classes, *np.unique(domains)])
    if "min_images_per_domain" in settings:
        training = kept
        if listed.test is not None:
            training = kept & ~listed.test
        kept &= _choose_large_domains(domains, training, settings["min_images_per_domain"])

    # the official test split, or one that is drawn
    if listed.test is None:
        test, rule = fixed_test_split(labels[kept], domains[kept], settings["test_fraction"])
    else:
        test = listed.test[kept]
        rule = listed.test_split
    log.info("%d of %d are test images: %s", test.sum(), kept.sum(), rule)

    # keep fewer training and test images
    stay = _choose_by_caps(labels[kept], test, domains[kept], classes, settings)
    kept[kept] = stay
    if not kept.all():
        log.info("%d of %d listed images are kept", kept.sum(), len(kept))

    return Prepared(
        items=partial(_kept_items, listed, kept),
        labels=labels[kept],
        classes=classes,
        provenance=listed.provenance,
        domains=domains[kept],
        test=test[stay],
        named=listed.named or "class_names" in settings,
        test_split=rule,
    )


def _kept_items(listed: ImageList, kept: np.ndarray) -> Iterator[Item]:
    """Yield the listed images that are `kept`, bool [N].

    Raises a FedLoomError if the source yields more or fewer items than it has labels.
    """
    for item, keep in zip_longest(listed.items(), kept):
        if item is None:
            raise FedLoomError(
                f"the source must have as many items as labels, {len(kept)}, got fewer"
            )
        if keep is None:
            raise FedLoomError(
                f"the source must have as many items as labels, {len(kept)}, got more"
            )
        if keep:
            yield item


def _check_labels(labels: np.ndarray, classes: list[str], provenance: str) -> None:
    """Refuse labels [N] that are not numbers of the classes."""
    outside = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(outside):
        first = outside[0]
        raise FedLoomError(
            f"labels must be from 0 to {len(classes) - 1}, got {labels[first]} for image {first} "
            f"({provenance})"
        )


def _check_names(names: Iterable[str]) -> None:
    """Refuse names of classes and domains that are not printable text."""
    for name in names:
        if not isinstance(name, str) or not name.isprintable():
            raise FedLoomError(
                f"class or domain {name!a}: a name that is not UTF-8 text; rename it, or set "
                "class_names"
            )


def _class_names(listed: ImageList, settings: JsonDict) -> list[str]:
    """Return the names of the classes: those of the config, or else of the source."""
    classes = settings.get("class_names", listed.classes)
    if len(classes) != len(listed.classes):
        raise FedLoomError(
            f"class_names must have a name for each of the {len(listed.classes)} classes, got "
            f"{len(classes)}"
        )
    _check_distinct(classes)
    return classes


def _check_distinct(classes: list[str]) -> None:
    """Refuse two classes with one name, or with names that differ only in case, blanks or accents.

    A reader and a CLIP would take such names for one. Names of a single letter may differ in case
    alone, for data sets of letters.
    """
    first: dict[str, int] = {}
    for label, name in enumerate(classes):
        read_as = tidy(str(name))

        # a class of the source `several` is called "part/class"
        own = read_as.rpartition("/")[2]
        if len(own) != 1:
            read_as = read_as.lower()
        before = first.setdefault(read_as, label)
        if before == label:
            continue

        if classes[before] == name:
            raise FedLoomError(
                f"classes {before} and {label} are both called {name!a}; set class_names"
            )
        raise FedLoomError(
            f"classes {before} and {label}, {classes[before]!a} and {name!a}, differ in case, "
            "blanks or the spelling of accents alone; give them one name, or set class_names"
        )


def _choose_classes(
    labels: np.ndarray, classes: list[str], names: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the images of the classes `names`, and number these classes from 0 in their order.

    Returns the new labels, int [N], which are -1 for images of other classes, and the chosen
    images, bool [N].
    """
    number = np.full(len(classes), -1)
    for new, name in enumerate(names):
        check_known(name, classes, "keep_classes: no class")
        number[classes.index(name)] = new
    return number[labels], number[labels] >= 0


def _choose_large_domains(domains: np.ndarray, training: np.ndarray, least: int) -> np.ndarray:
    """Choose the images of domains with at least `least` training images; return bool [N].

    `training`, bool [N], is True for training images. Images of NO_DOMAIN are always chosen.
    """
    names, domain = np.unique(domains, return_inverse=True)
    unknown = names == NO_DOMAIN
    large = ~unknown & (np.bincount(domain[training], minlength=len(names)) >= least)
    if not large.any():
        raise FedLoomError(
            f"min_images_per_domain: no domain has {least} training images; set a lower number"
        )
    log.info("%d of %d domains have %d training images", large.sum(), (~unknown).sum(), least)
    return (large | unknown)[domain]


def _choose_by_caps(
    labels: np.ndarray,
    test: np.ndarray,
    domains: np.ndarray,
    names: list[str],
    settings: JsonDict,
) -> np.ndarray:
    """Leave out images above the limits in `settings`; return the images that stay, bool [N].

    1. `first_per_domain` and `long_tail` limit the training images.
    2. `max_train_per_class` and `max_test_per_class` limit the images of each class.
    3. `max_train` and `max_test` limit the images of all classes together.

    Raises a FedLoomError if one of the C classes `names` loses all its training images.
    """
    chosen = np.ones(len(labels), bool)

    def counts(half: np.ndarray) -> np.ndarray:
        """Count the images of each class, [C], that are chosen so far in `half`, bool [N]."""
        return np.bincount(labels[half & chosen], minlength=len(names))

    def draw(half: np.ndarray, key: str, numbers: np.ndarray) -> None:
        """Keep `numbers` [C] random images of each class among those chosen in `half`, bool [N]."""
        rng = numpy_generator(0, key)
        for label, number in enumerate(numbers):
            rows = np.flatnonzero(half & chosen & (labels == label))
            chosen[rng.permutation(rows)[number:]] = False

    # limit the training images of each domain, and the sizes of classes to a long tail
    if "first_per_domain" in settings:
        for domain in np.unique(domains[~test]):
            rows = np.flatnonzero((domains == domain) & ~test)
            chosen[rows[settings["first_per_domain"] :]] = False
    if "long_tail" in settings:
        draw(~test, "long tail", long_tail(counts(~test), **settings["long_tail"]))

    # the caps of each class, then those of the whole dataset
    for key, half in (("max_train_per_class", ~test), ("max_test_per_class", test)):
        if key in settings:
            draw(half, key, np.full(len(names), settings[key]))
    for key, half in (("max_train", ~test), ("max_test", test)):
        if settings.get(key, np.inf) < counts(half).sum():
            draw(half, key, largest_remainder(settings[key], counts(half)))

    # every class must keep a training image
    lost = np.setdiff1d(labels[~test], labels[~test & chosen])
    if len(lost):
        raise FedLoomError(
            f"class '{names[lost[0]]}' has no training image left after first_per_domain, "
            "long_tail and max_train; let them keep more"
        )
    return chosen


def long_tail(counts: np.ndarray, factor: float) -> np.ndarray:
    """Return how many images each class keeps, [C], so that sizes fall exponentially.

    Class i of C, which has counts[i] images, keeps n * (1/factor)^(i/(C - 1)) of them, rounded
    down; n is the size of the largest class (Cao et al., LDAM, NeurIPS 2019).
    """
    exponents = np.arange(len(counts)) / max(1, len(counts) - 1)
    profile = np.floor(counts.max() * (1 / factor) ** exponents + 1e-9).astype(int)
    return np.minimum(profile, counts)
