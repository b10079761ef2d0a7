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
from fedloom.config.study import Config, PartitionGrid


def expanded(keys: Config) -> Config:
    """Return the config with the members of every grid in the place of its label."""
    partitions, members = dict[str, dict[str, Any]](), dict[str, list[str]]()
    for label, entry in keys.partitions.items():
        added = _members(label, entry) if "grid" in entry else [(label, entry)]
        members[label] = [name for name, _ in added]
        for name, member in added:
            if name in partitions or (name != label and name in keys.partitions):
                line = f"{CONFIG} partitions.{label}.grid: '{name}' is another partition too"
                raise FedLoomError(f"{line}; leave one of them out")
            partitions[name] = member

    def named(labels: Iterable[str]) -> list[str]:
        """Return labels, or scenarios, with those of the members in the place of a grid's."""
        parts = [name.rpartition("/") for name in labels]
        every = [start + sep + each for start, sep, at in parts for each in members.get(at, [at])]
        return list(dict.fromkeys(every))

    scenarios = keys.select.scenarios and named(keys.select.scenarios)
    chosen = {"partitions": named(keys.select.partitions), "scenarios": scenarios}
    select = keys.select.model_copy(update=chosen)
    return keys.model_copy(update={"partitions": partitions, "select": select})


def _members(label: str, entry: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return labels and entries that a grid stands for, the last key changing fastest."""
    path = ["partitions", label]
    grid = checked(PartitionGrid, {"grid": entry["grid"]}, f"{CONFIG} {'.'.join(path)}", path).grid
    plain = {key: value for key, value in entry.items() if key != "grid"}
    return [
        (
            f"{label}.{re.sub(r'[^A-Za-z0-9_.-]', '_', text(list(values)))}",
            deepcopy(plain | dict(zip(grid, values, strict=True))),
        )
        for values in product(*grid.values())
    ]
