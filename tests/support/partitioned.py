"""Labels, splits and domains without images, and partitions of them."""

import numpy as np

from fedloom.data.partition import divide_dataset

CLASSES = 10
DOMAINS = ["ink", "oil", "wax"]


def dataset(seed, count=600):
    """Return labels, test split and one domain; every class has training and test images."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    labels[: 4 * CLASSES] = np.repeat(np.arange(CLASSES), 4)
    test = rng.random(count) < 0.3
    test[: 4 * CLASSES] = np.tile([False, False, True, True], CLASSES)
    return labels, test, np.full(count, "x")


def with_domains(seed, count=900):
    """Return labels, test split and three domains of different size.

    Every class has training and test images in every domain.
    """
    labels, test, _ = dataset(seed, count)
    rng = np.random.default_rng(seed)
    domains = rng.choice(DOMAINS, count, p=[0.2, 0.3, 0.5])
    cells = 4 * CLASSES * len(DOMAINS)
    labels[:cells] = np.tile(np.repeat(np.arange(CLASSES), 4), len(DOMAINS))
    domains[:cells] = np.repeat(DOMAINS, 4 * CLASSES)
    test[:cells] = np.tile([False, False, True, True], cells // 4)
    return labels, test, domains


def make(spec, seed=0, data=None):
    """Return a partition's table; clients must be tested on classes that they train on."""
    labels, test, domains = data or dataset(0)
    table = divide_dataset(
        labels, test, domains, {"held_out": 0.0, "rest_to_last": False} | spec, seed
    )
    columns = table.to_pandas()
    trained, tested = (columns[columns["test"] == half] for half in (False, True))
    pairs = [set(zip(each["client_id"], each["label"], strict=True)) for each in (tested, trained)]
    assert pairs[0] <= pairs[1]
    return table
