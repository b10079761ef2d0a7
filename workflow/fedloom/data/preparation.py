"""From what a source lists to what a store holds: which images, of which classes, in which split.

Every source has these keys alike. They are applied in one order: names of the classes
(`class_names`), classes to keep (`keep_classes`), classes by domain (`class_per_domain`), domains
that are large enough (`min_images_per_domain`), the test split (`test_fraction`), the first images
of every domain (`first_per_domain`), the long tail (`long_tail`), and how many images each split
may have (`max_train_per_class`, `max_train` and the same of test images).
"""

import logging
from collections.abc import Iterator
from itertools import compress
from typing import Any

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.data import subsetting
from fedloom.data.classes import check_names, log_shared_classes, per_domain, renamed
from fedloom.data.image_list import ImageList, Item, Prepared, check_labels, check_list, counted
from fedloom.data.splits import Split, fixed_test_split

log = logging.getLogger(__name__)


def prepared(listed: ImageList, settings: dict[str, Any]) -> Prepared:
    """Return the images that the store will hold, with their domains and their test split.

    Args:
        settings: of the dataset; keys that a source has not are left out.

    Raises:
        FedLoomError: there are no images, or none is left; or an image is of a class that is not in
            `classes`; or there are not as many `class_names` as classes, or two classes of
            one name, or a name that is not text; or a key does not fit what is there.
    """
    check_list(listed)
    if not len(listed.labels):
        raise FedLoomError(f"there are no images ({listed.provenance})")
    classes, named = renamed(listed.classes, listed.named, settings.get("class_names"))
    check_labels(listed, len(classes))
    labels = listed.labels
    kept = np.ones(len(labels), bool)  # of the images that the source lists
    domains = np.full(len(labels), "all") if listed.domains is None else listed.domains
    if "keep_classes" in settings:
        labels, kept = subsetting.of_classes(labels, classes, settings["keep_classes"])
        classes = settings["keep_classes"]
    if settings.get("class_per_domain"):
        own, classes = per_domain(labels[kept], classes, domains[kept])
        labels = np.full(len(labels), -1)
        labels[kept] = own
    else:
        shared = "class_per_domain" in settings
        log_shared_classes(labels[kept], classes, domains[kept], shared)
    check_names(classes)
    if "min_images_per_domain" in settings:
        training = kept if listed.test is None else kept & ~listed.test
        kept &= subsetting.of_large_domains(domains, training, settings["min_images_per_domain"])
    split = _split(listed, kept, labels[kept], domains[kept], settings)
    stay = subsetting.of_splits(labels[kept], split.test, domains[kept], classes, settings)
    kept[kept] = stay
    if not kept.all():
        log.info("%d of %d listed images are kept", kept.sum(), len(kept))

    def items() -> Iterator[Item]:
        yield from compress(counted(listed), kept)

    return Prepared(
        items=items,
        labels=labels[kept],
        classes=classes,
        provenance=listed.provenance,
        domains=domains[kept],
        test=split.test[stay],
        named=named,
        test_split=split.rule,
    )


def _split(
    listed: ImageList,
    kept: np.ndarray,
    labels: np.ndarray,
    domains: np.ndarray,
    settings: dict[str, Any],
) -> Split:
    """Return the official test split of the kept images, or draw one; log which."""
    if listed.test is not None:
        split = Split(listed.test[kept], listed.test_split)
    else:
        split = fixed_test_split(labels, domains, settings["test_fraction"])
    log.info("%d of %d are test images: %s", split.test.sum(), len(labels), split.rule)
    return split
