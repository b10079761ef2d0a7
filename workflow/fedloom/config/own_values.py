"""Tell which partitions and methods keep a value of their own when a key of `study` is changed."""

import shlex
from collections.abc import Iterable, Iterator

from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.config.reading import Change
from fedloom.config.settings import Settings

# the keys of `study` that the entry of a method may have too; protocols of partitions have others
OF_METHODS = ("rounds", "training")


def notes_on_changes(
    settings: Settings, config: JsonDict, changes: Iterable[Change]
) -> Iterator[str]:
    """Yield a line for every changed key of `study` that partitions or methods override.

    The line names the values that stay, and the changes that would change them too.

    Args:
        settings: the settings of the study.
        config: the merged config that they were made from.
        changes: the changes of single keys.
    """
    for keys, value, text in changes:
        # a change of a whole mapping names no single key
        if keys[0] != "study" or isinstance(value, dict):
            continue
        own = dict(_own_values(settings, config, keys[1:]))
        kept = {path: other for path, other in own.items() if other != value}
        if kept:
            written = text.partition("=")[2]
            values = ", ".join(f"{path}={other}" for path, other in kept.items())
            more = " ".join(shlex.quote(f"{path}={written}") for path in kept)
            yield f"{text} does not change {values}; to change these too, add {more}"


def _own_values(
    settings: Settings, config: JsonDict, keys: list[str]
) -> Iterator[tuple[str, JsonValue]]:
    """Yield the key paths and values by which partitions and methods override a key of `study`.

    Only partitions and methods that the study runs count; the entry of a grid stands for its
    members.
    """
    for label, entry in config["partitions"].items():
        if _is_used(label, entry, settings.select.partitions):
            yield from _value_at(entry, f"partitions.{label}", ["protocol", *keys])

    if keys[0] in OF_METHODS:
        for label, entry in config.get("methods", {}).items():
            if _is_used(label, entry, settings.select.methods):
                yield from _value_at(entry, f"methods.{label}", keys)


def _is_used(label: str, entry: JsonDict, selected: Iterable[str]) -> bool:
    """Return True if a label is selected, or a member of the grid that it stands for."""
    if "grid" in entry:
        return any(each.startswith(f"{label}.") for each in selected)
    return label in selected


def _value_at(entry: JsonDict, path: str, keys: list[str]) -> Iterator[tuple[str, JsonValue]]:
    """Yield the key path and the value that `keys` lead to in an entry, unless there is none."""
    value: JsonValue = entry
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return
        value = value[key]
        path += f".{key}"
    yield path, value
