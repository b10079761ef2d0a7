"""Shrink grids of methods and of partitions to the ends of their axes."""

from collections.abc import Iterable, Mapping

from fedloom.common.json_types import JsonDict
from fedloom.config.grids import combinations

# the axes of a grid, with the values of each
Axes = dict[str, list]


def ends(axes: Mapping[str, list]) -> Axes:
    """Return the first and the last value of each axis of a grid."""
    return {axis: values[:1] + values[1:][-1:] for axis, values in axes.items()}


def shrink_grids(entries: Mapping[str, JsonDict], selected: Iterable[str]) -> dict[str, Axes]:
    """Return the axes of each grid that a study runs: the ends of the values that it selects.

    Args:
        entries: methods or partitions of the config, by label; some are grids.
        selected: the labels of all methods or partitions that the study runs.
    """
    names = {*selected}
    grids = dict[str, Axes]()
    for label, entry in entries.items():
        if not entry.get("grid"):
            continue
        chosen = [at for name, at in combinations(label, entry["grid"]) if name in names]
        if not chosen:
            continue

        used = {}
        for axis, values in entry["grid"].items():
            used[axis] = [value for value in values if any(at[axis] == value for at in chosen)]
        grids[label] = ends(used)

        # of single members, perhaps none is at the ends of all axes
        if not any(name in names for name, _ in combinations(label, grids[label])):
            grids[label] = {axis: [value] for axis, value in chosen[0].items()}
    return grids


def lost_members(entries: Mapping[str, JsonDict], grids: Mapping[str, Axes]) -> set[str]:
    """Return the labels of the members of grids that the shrunk grids lack."""
    lost = set[str]()
    for label, axes in grids.items():
        kept = {name for name, _ in combinations(label, axes)}
        lost |= {name for name, _ in combinations(label, entries[label]["grid"])} - kept
    return lost
