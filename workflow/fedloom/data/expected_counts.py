"""Compare the images that a source lists with the counts that a recipe states."""

from typing import Any

import numpy as np

from fedloom.data.image_list import NO_DOMAIN, Prepared

IMAGES = {"images": "images", "train": "training images", "test": "test images"}
WORDS = IMAGES | {"classes": "classes with training images", "domains": "domains"}
MANY = 5  # lines on single classes before the rest of them is one line


def differences(ready: Prepared, counts: dict[str, Any]) -> list[str]:
    """Return a line for every count that is not the recipe's.

    Args:
        ready: the prepared list, with domains and test split.
        counts: as a recipe has them, see fedloom.config.recipes.Counts.
    """
    lines = []
    counted = _cell(np.ones(len(ready.labels), bool), ready.test)
    for key in IMAGES:
        lines += _difference("", key, counted[key], counts)
    named = {"classes": trained_classes(ready), "domains": _domains(ready)}
    for key, names in named.items():
        if counts.get(key, len(names)) != len(names):
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            lines.append(
                f"{len(names)} {WORDS[key]}, the recipe has {counts[key]:,}; found: {shown}"
            )
    lines += _by_domain(ready, counts.get("by_domain", {}))
    return lines + _by_class(ready, counts)


def trained_classes(ready: Prepared) -> list[str]:
    """Return the names of the classes that have training images."""
    counts = np.bincount(ready.labels[~ready.test], minlength=len(ready.classes))
    return [name for name, count in zip(ready.classes, counts, strict=True) if count]


def uncompared(ready: Prepared, counts: dict[str, Any]) -> list[str]:
    """Return which images no count of a recipe covers, such as "training images of notmnist".

    A count of images covers those of both splits; one that says at least how many there are covers
    them as well.

    Args:
        ready, counts: see `differences`.
    """
    names, domains = _domains(ready), counts.get("by_domain", {})
    lines = []
    for half in ("train", "test"):
        if _states(counts, half) or _states(counts.get("each_class", {}), half):
            continue
        rest = [name for name in names if not _states(domains.get(name, {}), half)]
        if rest:
            lines.append(WORDS[half] + ("" if rest == names else f" of {', '.join(rest)}"))
    return lines


def _states(cell: dict[str, Any], half: str) -> bool:
    """Return True if counts cover the images of a split, by themselves or with the other's."""
    return any(key in part for part in (cell, cell.get("at_least", {})) for key in (half, "images"))


def _domains(ready: Prepared) -> list[str]:
    """Return the names of the domains."""
    return [name for name in np.unique(ready.domains).tolist() if name != NO_DOMAIN]


def _by_domain(ready: Prepared, expected: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for every domain that differs."""
    lines = []
    for name, cell in expected.items():
        counted = _cell(ready.domains == name, ready.test)
        if not counted["images"]:
            lines.append(f"domain '{name}': missing")
            continue
        for key in IMAGES:
            lines += _difference(f"domain '{name}': ", key, counted[key], cell)
    return lines


def _by_class(ready: Prepared, counts: dict[str, Any]) -> list[str]:
    """Return a line for every class that differs; of many such, one for those after the first."""
    lines = []
    each, expected = counts.get("each_class", {}), counts.get("by_class", {})
    for name in expected.keys() - set(ready.classes):
        lines.append(f"class '{name}': missing")
    for label, name in enumerate(ready.classes):
        cell = each | expected.get(name, {})
        counted = _cell(ready.labels == label, ready.test)
        for key in IMAGES:
            lines += _difference(f"class '{name}': ", key, counted[key], cell)
    rest = len(lines) - MANY
    return lines if rest <= 0 else [*lines[:MANY], f"{rest} more such lines on classes"]


def _cell(rows: np.ndarray, test: np.ndarray) -> dict[str, int]:
    """Return the numbers of images, of training and of test images, among `rows`, bool [N]."""
    return {
        "images": int(rows.sum()),
        "train": int((rows & ~test).sum()),
        "test": int((rows & test).sum()),
    }


def _difference(where: str, key: str, count: int, expected: dict[str, Any]) -> list[str]:
    """Return a line in a list if a count is not as expected, or less than it is at least."""
    least = expected.get("at_least", {}).get(key, 0)
    due = expected.get(key, max(count, least))
    if count == due:
        return []
    change = count - due
    more = f"{abs(change):,} {'more' if change > 0 else 'fewer'}"
    has = "the recipe has" + ("" if key in expected else " at least")
    return [f"{where}{count:,} {WORDS[key]}, {has} {due:,} ({more})"]
