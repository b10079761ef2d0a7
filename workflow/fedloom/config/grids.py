"""Expand grids: a label of methods or partitions that stands for every combination of values.

An axis of a method is an option, or a training option as `training.lr`, or an entry of a list, as
`option.position` (from 0).
"""

import re
from collections.abc import Iterable
from copy import deepcopy
from itertools import product
from typing import Any

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.schema import checked
from fedloom.config.reading import CONFIG
from fedloom.config.settings import Grid, GridMember
from fedloom.config.study import Config, PartitionGrid
from fedloom.hooks.options import check_value
from fedloom.hooks.training_options import Training

TRAINING = "training."


def split(axis: str) -> tuple[str, str | None]:
    """Return the option that an axis varies, and the position in its list, None for all of it."""
    start = TRAINING if axis.startswith(TRAINING) else ""
    option, dot, position = axis.removeprefix(start).partition(".")
    return start + option, position if dot else None


def split_training_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a grid's options into those of the method and those of training, such as `lr`."""
    training = {k.removeprefix(TRAINING): v for k, v in options.items() if k.startswith(TRAINING)}
    return {k: v for k, v in options.items() if not k.startswith(TRAINING)}, training


def check_axes(axes: dict[str, list], options: dict, schemas: dict, where: str) -> None:
    """Check that every axis names one of `options`, or an entry of one, and check its values."""
    for axis, values in axes.items():
        at, (option, position) = f"{where}.{axis}", split(axis)
        alike = [k for k in options if k.startswith(TRAINING) == option.startswith(TRAINING)]
        check_known(option, alike, f"{at}: no option")
        if position is not None:
            if option in axes:
                raise FedLoomError(f"{at}: '{option}' as a whole is an axis too; keep one")
            if not isinstance(options[option], list):
                raise FedLoomError(f"{at}: option '{option}' must be a list; take it as a whole")
            known = [str(number) for number in range(len(options[option]))]
            check_known(position, known, f"{at}: options.{option} has no position")
        for i, value in enumerate(values):
            if not option.startswith(TRAINING):
                shape = schemas[option] if position is None else schemas[option].get("items", {})
                check_value(value, shape, f"{at}[{i}]")
                continue
            whole = value if position is None else _placed(options[option], position, value)
            checked(Training, {option.removeprefix(TRAINING): whole}, f"{where}.training")


def _placed(values: list, position: str, value: Any) -> list:
    """Return a list with another value at a position."""
    return [value if str(number) == position else each for number, each in enumerate(values)]


def combinations(label: str, axes: dict[str, list]) -> list[tuple[str, dict[str, Any]]]:
    """List label and values of each combination of a grid; the last axis changes fastest."""
    found = []
    for values in product(*axes.values()):
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", text(list(values)))  # what a label may have
        found.append((f"{label}.{name}", dict(zip(axes, values, strict=True))))
    return found


def members(grid: Grid) -> list[tuple[str, str, GridMember]]:
    """List label, title and position of each member of a grid, in the order of `combinations`."""
    result = []
    for position, (label, at) in enumerate(combinations(grid.label, dict(grid.axes))):
        options = deepcopy(dict(grid.options))
        for axis, value in at.items():
            option, entry = split(axis)
            options[option] = value if entry is None else _placed(options[option], entry, value)
        changed = [f"{name.removeprefix(TRAINING)} {text(v)}" for name, v in options.items()]
        title = ", ".join([grid.title, *changed])
        result.append((label, title, GridMember(grid.label, position, at, options, grid.title)))
    return result


def with_partitions(keys: Config) -> Config:
    """Return the config in which grids of partitions are replaced by their members."""
    partitions = dict[str, dict[str, Any]]()
    members = dict[str, list[str]]()
    for label, entry in keys.partitions.items():
        where = f"{CONFIG} partitions.{label}"
        plain = {key: value for key, value in entry.items() if key != "grid"}
        added = [(label, plain)]
        if "grid" in entry:
            grid = checked(PartitionGrid, {"grid": entry["grid"]}, where).grid
            added = [(name, deepcopy(plain | at)) for name, at in combinations(label, grid)]
        for name, member in added:
            if name in partitions or (name != label and name in keys.partitions):
                raise FedLoomError(
                    f"{where}.grid: '{name}' is another partition too; leave one of them out"
                )
            partitions[name] = member
        members[label] = [name for name, _ in added]

    def named(labels: Iterable[str]) -> list[str]:
        """Return labels, or scenarios, with those of the members in the place of a grid's."""
        parts = [name.rpartition("/") for name in labels]
        every = [start + sep + each for start, sep, at in parts for each in members.get(at, [at])]
        return list(dict.fromkeys(every))

    for entry in (*keys.tables.values(), *keys.figures.values()):
        names = entry.get("scenarios")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            entry["scenarios"] = named(names)
    scenarios = keys.select.scenarios and named(keys.select.scenarios)
    chosen = {"partitions": named(keys.select.partitions), "scenarios": scenarios}
    select = keys.select.model_copy(update=chosen)
    return keys.model_copy(update={"partitions": partitions, "select": select})


def varied_lists(member: GridMember) -> dict[str, list]:
    """Return the values in a member of the list options whose entries are axes of its grid."""
    axes = [split(axis) for axis in member.at]
    return {option: member.options[option] for option, entry in axes if entry is not None}


def text(value: Any) -> str:
    """Write an option's value as text: 0.5, 1 for 1.0, true, null, 4-8-12 for a list."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "-".join(map(text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)
