"""Grids of partitions: one label that stands for one partition per combination of values."""

import re
from collections.abc import Iterable
from copy import deepcopy
from itertools import product
from typing import Any

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import checked
from fedloom.config.grids import text
from fedloom.config.reading import CONFIG
from fedloom.config.study import Config, PartitionGrid, Select


def expanded(keys: Config) -> Config:
    """Return the config with the members of every grid in the place of its label."""
    partitions: dict[str, dict[str, Any]] = {}
    members: dict[str, list[str]] = {}
    for label, entry in keys.partitions.items():
        added = _members(label, entry) if "grid" in entry else {label: entry}
        members[label] = list(added)
        for name in added:
            if name in partitions or (name != label and name in keys.partitions):
                line = f"{CONFIG} partitions.{label}.grid: '{name}' is another label too"
                raise FedLoomError(f"{line}; leave one of them out")
        partitions |= added
    select = _named(keys.select, members)
    return keys.model_copy(update={"partitions": partitions, "select": select})


def _members(label: str, entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the entries that a grid stands for, by label, the last key changing fastest."""
    path = ["partitions", label]
    grid = checked(PartitionGrid, {"grid": entry["grid"]}, f"{CONFIG} {'.'.join(path)}", path).grid
    found: dict[str, dict[str, Any]] = {}
    for values in product(*grid.values()):
        name = f"{label}.{re.sub(r'[^A-Za-z0-9_.-]', '_', text(list(values)))}"
        if name in found:
            line = f"{CONFIG} partitions.{label}.grid: '{name}' is another combination too"
            raise FedLoomError(f"{line}; leave one of them out")
        found[name] = deepcopy(entry) | dict(zip(grid, deepcopy(values), strict=True))
        del found[name]["grid"]
    return found


def _named(select: Select, members: dict[str, list[str]]) -> Select:
    """Return the selection with the members' labels where it names a grid."""

    def of_scenario(name: str) -> list[str]:
        dataset, _, partition = name.partition("/")
        return [f"{dataset}/{each}" for each in members.get(partition, [])] or [name]

    partitions = _flat(members.get(label, [label]) for label in select.partitions)
    scenarios = select.scenarios and _flat(map(of_scenario, select.scenarios))
    return select.model_copy(update={"partitions": partitions, "scenarios": scenarios})


def _flat(parts: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(label for part in parts for label in part))
