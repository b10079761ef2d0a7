"""Compare the images that a source lists with the counts that a recipe states."""

from typing import Any

import numpy as np

from fedloom.data.listed import NO_DOMAIN, Prepared

WORDS = {"images": "images", "train": "training images", "test": "test images"}
MANY = 5  # lines on single classes before the rest of them is one line


def differences(ready: Prepared, counts: dict[str, Any]) -> list[str]:
    """Return a line for every count that is not the recipe's.

    Args:
        ready: the prepared list, with domains and test split.
        counts: as a recipe has them, see workflow/schemas/recipe.schema.yaml.
    """
    lines = []
    found = _cell(np.ones(len(ready.labels), bool), ready.test)
    for key in ("images", "train", "test"):
        lines += _difference("", key, found[key], counts)
    for key, names in (("classes", ready.classes), ("domains", _domains(ready))):
        if counts.get(key, len(names)) != len(names):
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            lines.append(f"{len(names)} {key}, the recipe has {counts[key]:,}; found: {shown}")
    lines += _by_domain(ready, counts.get("by_domain", {}))
    return lines + _by_class(ready, counts)


def _domains(ready: Prepared) -> list[str]:
    """Return the names of the domains."""
    return [name for name in np.unique(ready.domains).tolist() if name != NO_DOMAIN]


def _by_domain(ready: Prepared, expected: dict[str, dict[str, int]]) -> list[str]:
    """Return a line for every domain that differs."""
    lines = []
    for name, cell in expected.items():
        found = _cell(ready.domains == name, ready.test)
        if not found["images"]:
            lines.append(f"domain '{name}': missing")
            continue
        for key in cell:
            lines += _difference(f"domain '{name}': ", key, found[key], cell)
    return lines


def _by_class(ready: Prepared, counts: dict[str, Any]) -> list[str]:
    """Return a line for every class that differs; of many such, one for those after the first."""
    lines = []
    each, expected = counts.get("each_class", {}), counts.get("by_class", {})
    for name in expected.keys() - set(ready.classes):
        lines.append(f"class '{name}': missing")
    for label, name in enumerate(ready.classes):
        cell = each | expected.get(name, {})
        found = _cell(ready.labels == label, ready.test)
        for key in cell:
            lines += _difference(f"class '{name}': ", key, found[key], cell)
    rest = len(lines) - MANY
    return lines if rest <= 0 else [*lines[:MANY], f"{rest} more such lines on classes"]


def _cell(rows: np.ndarray, test: np.ndarray) -> dict[str, int]:
    """Return the numbers of images, of training and of test images, among `rows`, bool [N]."""
    return {
        "images": int(rows.sum()),
        "train": int((rows & ~test).sum()),
        "test": int((rows & test).sum()),
    }


def _difference(where: str, key: str, found: int, expected: dict[str, Any]) -> list[str]:
    """Return a line in a list if a count is not as expected."""
    if key not in expected or found == expected[key]:
        return []
    change = found - expected[key]
    more = f"{abs(change):,} {'more' if change > 0 else 'fewer'}"
    return [f"{where}{found:,} {WORDS[key]}, the recipe has {expected[key]:,} ({more})"]
