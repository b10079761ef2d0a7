"""Check a source's numbers of images against its recipe."""

import numpy as np

from fedloom.common.errors import shorten
from fedloom.common.ids import domain_names
from fedloom.common.json_types import JsonDict
from fedloom.data.image_list import Prepared

IMAGES = {"images": "images", "train": "training images", "test": "test images"}
# the most lines about single classes; one further line counts those left out
MANY = 5


def differences_from_recipe(ready: Prepared, counts: JsonDict) -> list[str]:
    """Return a line for every number of images that differs from the recipe's `counts`."""
    # the whole dataset: images, classes and domains
    lines = _compared("", ready, np.ones(len(ready.labels), bool), counts)
    domains = domain_names(ready.domains.tolist())
    for key, names in (("classes", trained_classes(ready)), ("domains", domains)):
        if counts.get(key, len(names)) != len(names):
            shown = shorten(", ".join(names), 100)
            lines.append(f"{len(names)} {key}, the recipe has {counts[key]:,}; found: {shown}")

    # by domain
    for name, cell in counts.get("by_domain", {}).items():
        rows = ready.domains == name
        lines += _compared(f"domain '{name}': ", ready, rows, cell)

    # by class
    expected = counts.get("by_class", {})
    each = counts.get("each_class", {})
    class_lines = [f"class '{name}': missing" for name in expected if name not in ready.classes]
    for label, name in enumerate(ready.classes):
        cell = each | expected.get(name, {})
        class_lines += _compared(f"class '{name}': ", ready, ready.labels == label, cell)
    if len(class_lines) > MANY:
        class_lines[MANY:] = [f"{len(class_lines) - MANY} more such lines on classes"]
    return lines + class_lines


def trained_classes(ready: Prepared) -> list[str]:
    """Return the names of the classes with training images.

    If all images are test images, return the names of the classes with test images.
    """
    rows = ~ready.test
    if ready.test.all():
        rows = ready.test
    counts = np.bincount(ready.labels[rows], minlength=len(ready.classes))
    return [name for name, count in zip(ready.classes, counts, strict=True) if count]


def _compared(where: str, ready: Prepared, rows: np.ndarray, cell: JsonDict) -> list[str]:
    """Return a line for every number of images that differs from the recipe's numbers in `cell`.

    Images are counted where `rows`, bool [N], is True. `where` begins every line.
    """
    lines = []
    at_least = cell.get("at_least", {})
    for key, half in (("images", rows), ("train", rows & ~ready.test), ("test", rows & ready.test)):
        # the number that the recipe states; if it states a minimum, any larger number is due, too
        count = int(half.sum())
        due = cell.get(key, max(count, at_least.get(key, 0)))
        if count == due:
            continue

        more = f"{abs(count - due):,} fewer"
        if count > due:
            more = f"{abs(count - due):,} more"
        has = "the recipe has"
        if key not in cell:
            has = "the recipe has at least"
        lines.append(f"{where}{count:,} {IMAGES[key]}, {has} {due:,} ({more})")
    return lines
