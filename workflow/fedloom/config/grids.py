"""Expand grids: a label of methods or partitions that stands for every combination of values.

An axis of a method's grid is one of the following:

- an option of the method;
- a training option, such as `training.lr`;
- an entry of an option that is a list, written `option.position` (from 0).
"""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import product

from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.common.key_path import CONFIG, KeyPath
from fedloom.common.schema import validate
from fedloom.config.settings import Grid, GridMember
from fedloom.config.study import Config, PartitionGrid
from fedloom.hooks.options import check_value
from fedloom.hooks.training_options import Training

TRAINING = "training."


def split_axis(axis: str) -> tuple[str, str | None]:
    """Return the option that an axis changes, and the position of the entry that it changes.

    The position is None if the axis changes the option as a whole.
    """
    prefix = ""
    if axis.startswith(TRAINING):
        prefix = TRAINING
    option, dot, position = axis.removeprefix(prefix).partition(".")
    return prefix + option, position if dot else None


def split_training_options(options: JsonDict) -> tuple[JsonDict, JsonDict]:
    """Split options into the method's own and those of training.

    A training option, such as `training.lr`, is returned without `training.`.
    """
    own = {}
    training = {}
    for name, value in options.items():
        if name.startswith(TRAINING):
            training[name.removeprefix(TRAINING)] = value
        else:
            own[name] = value
    return own, training


def check_axes(axes: dict[str, list], options: dict, schemas: dict, where: KeyPath) -> None:
    """Raise an InvalidKeyError if an axis names no option or entry, or has a wrong value.

    Args:
        axes: maps each axis to its values.
        options: the options of the method, and its training options with `training.` before them.
        schemas: the JSON Schema of each option of the method.
        where: the key path of the grid.
    """
    for axis, values in axes.items():
        at = where / axis
        option, position = split_axis(axis)
        is_of_training = option.startswith(TRAINING)

        # the option must be known, and must have the position
        alike = [name for name in options if name.startswith(TRAINING) == is_of_training]
        at.check_known(option, alike, "no option")
        if position is not None:
            if option in axes:
                raise at.error(f"'{option}' as a whole is an axis too; keep one")
            if not isinstance(options[option], list):
                raise at.error(f"option '{option}' must be a list; take it as a whole")
            known = [str(number) for number in range(len(options[option]))]
            at.check_known(position, known, f"options.{option} has no position")

        # the option must accept each of the values
        for number, value in enumerate(values):
            if is_of_training:
                whole = value
                if position is not None:
                    whole = _placed(options[option], position, value)
                name = option.removeprefix(TRAINING)
                validate(Training, {name: whole}, where / "training")
            else:
                schema = schemas[option]
                if position is not None:
                    schema = schema.get("items", {})
                check_value(value, schema, at / number)


def _placed(values: list, position: str, value: JsonValue) -> list:
    """Return a list with another value at a position."""
    return [value if str(number) == position else each for number, each in enumerate(values)]


def combine_axes(axes: Mapping[str, list]) -> list[JsonDict]:
    """Return all combinations of the axes' values; the last axis changes fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def combinations(label: str, axes: dict[str, list]) -> list[tuple[str, JsonDict]]:
    """List the label and the values of each combination, in the order of `combine_axes`."""
    found = []
    for values in combine_axes(axes):
        # a label may have no other characters
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", value_text(list(values.values())))
        found.append((f"{label}.{name}", values))
    return found


def members(grid: Grid) -> list[tuple[str, str, GridMember]]:
    """List the members of a grid, each after its label and its title, as `combinations` does."""
    result = []
    for position, (label, at) in enumerate(combinations(grid.label, dict(grid.axes))):
        options = deepcopy(dict(grid.options))
        for axis, value in at.items():
            option, entry = split_axis(axis)
            if entry is None:
                options[option] = value
            else:
                options[option] = _placed(options[option], entry, value)
        title = ", ".join([grid.title, *describe_options(options)])
        titles = dict(grid.axis_titles)
        member = GridMember(grid.label, position, at, options, grid.title, titles)
        result.append((label, title, member))
    return result


def describe_options(options: JsonDict) -> list[str]:
    """Return a text for each option of a method or of its training, such as "lr 0.5"."""
    return [f"{name.removeprefix(TRAINING)} {value_text(value)}" for name, value in options.items()]


def partition_members(label: str, entry: JsonDict) -> list[tuple[str, JsonDict]]:
    """List the partitions that an entry stands for, each after its label.

    They are the members of its grid, or the entry itself if it has no grid.
    """
    if "grid" not in entry:
        return [(label, entry)]
    plain = {key: value for key, value in entry.items() if key != "grid"}
    return [(name, deepcopy(plain | at)) for name, at in combinations(label, entry["grid"])]


def with_partitions(keys: Config) -> Config:
    """Return the config with the members of each grid of partitions in the place of the grid.

    Raises:
        InvalidKeyError: a grid is wrong, or a member has the label of another partition.
    """
    partitions = dict[str, JsonDict]()
    members = dict[str, list[str]]()
    for label, entry in keys.partitions.items():
        where = CONFIG / "partitions" / label

        if "grid" in entry:
            validate(PartitionGrid, {"grid": entry["grid"]}, where)
        added = partition_members(label, entry)

        for name, member in added:
            if name in partitions or (name != label and name in keys.partitions):
                raise (where / "grid").error(
                    f"'{name}' is another partition too; leave one of them out"
                )
            partitions[name] = member
        members[label] = [name for name, _ in added]

    def expanded(names: Iterable[str]) -> list[str]:
        """Return labels or scenarios, with the members of each grid in the place of the grid."""
        found: dict[str, None] = {}
        for name in names:
            dataset, slash, label = name.rpartition("/")
            for member in members.get(label, [label]):
                found[f"{dataset}{slash}{member}"] = None
        return list(found)

    # wherever the config names a grid, put the grid's members in its place
    for entry in (*keys.tables.values(), *keys.figures.values()):
        names = entry.get("scenarios")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            entry["scenarios"] = expanded(names)
    scenarios = keys.select.scenarios and expanded(keys.select.scenarios)
    chosen = {"partitions": expanded(keys.select.partitions), "scenarios": scenarios}
    select = keys.select.model_copy(update=chosen)
    return keys.model_copy(update={"partitions": partitions, "select": select})


def varied_lists(member: GridMember) -> dict[str, list]:
    """Return the values that a member has for the list options in which its grid varies entries."""
    axes = [split_axis(axis) for axis in member.at]
    return {option: member.options[option] for option, entry in axes if entry is not None}


def value_text(value: JsonValue) -> str:
    """Write an option's value as text: 0.5, 1 for 1.0, true, null, 4-8-12 for a list."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "-".join(map(value_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return str(value)
