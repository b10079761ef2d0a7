"""The kinds of entry that a section of the config may have: models of their keys, found by name.

A kind of table, figure, source or scheme is a module: a class with its keys beside the code that
reads them. Those modules lie above this one, so that whoever makes a plan hands their rooms in.
"""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.schema import Keys, SchemaError, checked

# the key that names what an entry is checked against
NAMED_BY = {
    "datasets": "source",
    "partitions": "scheme",
    "backbones": "library",
    "tables": "kind",
    "figures": "kind",
}


class Kinds(Protocol):
    """The kinds of entry of one section."""

    def find(self, name: str) -> type[Keys] | None:
        """Return the keys of a kind; None if there is none of that name."""
        ...

    def names(self) -> list[str]:
        """Return the names of all kinds."""
        ...


Catalogue = Mapping[str, Kinds]  # by section


@dataclass(frozen=True)
class Room:
    """The kinds that are modules of a package: each has the name of its module.

    Attributes:
        package: its dotted name.
        base: the class that those of all kinds derive from.
    """

    package: str
    base: type[Keys]

    def find(self, name: str) -> type[Keys] | None:
        """Return the class of a kind, which its module defines; None if there is none."""
        full = f"{self.package}.{name}"
        if not name.isidentifier() or importlib.util.find_spec(full) is None:
            return None
        for value in vars(importlib.import_module(full)).values():
            if (
                isinstance(value, type)
                and issubclass(value, self.base)
                and value.__module__ == full
            ):
                return value
        return None

    def names(self) -> list[str]:
        """Return the names of all kinds, in alphabetical order."""
        path = importlib.import_module(self.package).__path__
        modules = sorted(module.name for module in pkgutil.iter_modules(path))
        return [name for name in modules if self.find(name) is not None]


@dataclass(frozen=True)
class Listed:
    """The kinds that a mapping holds."""

    kinds: Mapping[str, type[Keys]]

    def find(self, name: str) -> type[Keys] | None:
        """Return the keys of a kind; None if there is none of that name."""
        return self.kinds.get(name)

    def names(self) -> list[str]:
        """Return the names of all kinds."""
        return list(self.kinds)


class Entry(NamedTuple):
    """An entry of a section: the name of its kind, and its keys with all defaults."""

    kind: str
    keys: Any


def check_entry(section: str, label: str, entry: dict[str, Any], kinds: Kinds, where: str) -> Entry:
    """Return an entry of the config, checked against the keys of its kind.

    Raises:
        FedLoomError: one line that names the key.
    """
    named_by, path = NAMED_BY[section], key_path(section, label)
    name = entry.get(named_by)
    try:
        model = kinds.find(name) if isinstance(name, str) else None
    except FedLoomError as error:  # of a broken plugin
        raise SchemaError(f"{where}.{named_by}: {error}", [*path, named_by]) from None
    if model is None:
        line = f"{where}.{named_by}: no {named_by} '{name}'; {suggestion(str(name), kinds.names())}"
        raise SchemaError(line, [*path, named_by])
    keys = {key: value for key, value in entry.items() if key != named_by}
    return Entry(str(name), checked(model, keys, where, path))


def key_path(section: str, label: str) -> list[str]:
    """Return the path of an entry in its file; <label>.parts.<name> is that of a part."""
    return [section, *re.split(r"\.(parts)\.", label)]
