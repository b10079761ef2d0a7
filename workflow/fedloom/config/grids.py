"""Grids: one label of the config's `methods` that stands for one per combination of values.

An axis is an option of the method, or a training option as `training.lr`; with a position behind
it, `option.position`, it is an entry of a list (from 0).
"""

import re
from copy import deepcopy
from itertools import product
from typing import Any

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.schema import checked
from fedloom.config.settings import Grid, GridMember
from fedloom.hooks.options import check_value
from fedloom.hooks.training import Training

TRAINING = "training."


def split(axis: str) -> tuple[str, str | None]:
    """Return the option of an axis and the position in it, None for the option as a whole."""
    start = TRAINING if axis.startswith(TRAINING) else ""
    option, dot, position = axis.removeprefix(start).partition(".")
    return start + option, position if dot else None


def parted(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the method's own options among a grid's, and those of training, as `lr`."""
    training = {k.removeprefix(TRAINING): v for k, v in options.items() if k.startswith(TRAINING)}
    return {k: v for k, v in options.items() if not k.startswith(TRAINING)}, training


def check_axes(axes: dict[str, list], options: dict, schemas: dict, where: str) -> None:
    """Check that every axis is an option or an entry of one, and its values are of the right type.

    Args:
        options: the label's options, all of them filled in; training options as `training.lr`.
    """
    for axis, values in axes.items():
        at = f"{where}.{axis}"
        option, position = split(axis)
        alike = [k for k in options if k.startswith(TRAINING) == option.startswith(TRAINING)]
        check_known(option, alike, f"{at}: no option")
        if position is not None:
            if option in axes:
                raise FedLoomError(f"{at}: '{option}' as a whole is an axis too; keep one")
            if not isinstance(options[option], list):
                raise FedLoomError(f"{at}: option '{option}' must be a list; take it as a whole")
            entries = len(options[option])
            if position not in map(str, range(entries)):
                raise FedLoomError(
                    f"{at}: no position '{position}' in the list of {entries}; they count "
                    f"from 0, and the label's options.{option} says how long the list is"
                )
        for i, value in enumerate(values):
            if option.startswith(TRAINING):
                whole = value
                if position is not None:
                    whole = list(options[option])
                    whole[int(position)] = value
                checked(Training, {option.removeprefix(TRAINING): whole}, f"{where}.training")
            else:
                shape = schemas[option] if position is None else schemas[option].get("items", {})
                check_value(value, shape, f"{at}[{i}]")


def members(grid: Grid) -> list[tuple[str, str, GridMember]]:
    """List label, title and position of a grid's members, the last axis changing fastest."""
    names = [axis for axis, _ in grid.axes]
    result = []
    for position, values in enumerate(product(*(values for _, values in grid.axes))):
        at = dict(zip(names, values, strict=True))
        options = deepcopy(dict(grid.options))
        for axis, value in at.items():
            option, entry = split(axis)
            if entry is None:
                options[option] = value
            else:
                options[option][int(entry)] = value
        # with the characters that a label may have
        label = f"{grid.label}.{re.sub(r'[^A-Za-z0-9_.-]', '_', text(list(values)))}"
        changed = [
            f"{name.removeprefix(TRAINING)} {text(value)}" for name, value in options.items()
        ]
        title = ", ".join([grid.title, *changed])
        result.append((label, title, GridMember(grid.label, position, at, options, grid.title)))
    return result


def varied_lists(member: GridMember) -> dict[str, list]:
    """Return the lists whose entries are axes, by option, as a member has them."""
    axes = [split(axis) for axis in member.at]
    return {option: member.options[option] for option, entry in axes if entry is not None}


def text(value: Any) -> str:
    """Write an option's value in words: 0.5, 1 for 1.0, true, null, 4-8-12 for a list."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "-".join(map(text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)
