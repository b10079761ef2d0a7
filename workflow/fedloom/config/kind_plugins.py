"""Kinds of source, scheme, table and figure that plugins bring; they are found as methods are.

A source or a scheme states its keys in its TOML file. A table or a figure is a class in plugin.py,
as those of FedLoom are, and is imported where a study names it.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fedloom.common.checkout import plugin_folders
from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.schema import Keys
from fedloom.config.data_plugins import OWN, DataPlugin, KindPlugin
from fedloom.config.kinds import Kinds, derived
from fedloom.hooks import manifest
from fedloom.hooks.discovery import Found, gather
from fedloom.hooks.hook_caller import guarded
from fedloom.hooks.importing import import_plugin

Result = TypeVar("Result")


class OutputPlugin(KindPlugin):
    """A kind of table or figure of a plugin: the keys of table.toml or figure.toml."""

    def keys(self) -> type[Keys]:
        """Return the class in plugin.py, which holds the kind's keys and draws or builds it.

        A name that FedLoom has is refused here, since its own classes take a second to import.
        """
        try:
            self.check_name()
        except FedLoomError as error:
            raise FedLoomError(f"{self._toml}: {error}") from None
        base = OWN[self.kind].base
        found = derived(import_plugin(self), base)
        if len(found) != 1:
            line = f"must have one class derived from {base.__name__}, got {len(found)}"
            raise FedLoomError(f"{self.file}: {line}")
        (kind,) = found
        needed = ("draw",) if self.kind == "figure" else ("measure", "column", "describe")
        for name in () if hasattr(kind, "build") else needed:
            if not hasattr(kind, name):
                raise FedLoomError(f"{self.file}: {kind.__name__} must have the method {name}")
        return kind


@cache
def discover(kind: str, folder: Path | None = None) -> Found[Any]:
    """Return the plugins of a kind, one of OWN, as `manifest.discover` does methods."""
    model = OutputPlugin if kind in ("table", "figure") else DataPlugin
    return gather(kind, [folder] if folder else plugin_folders(), model)


def find(kind: str, name: str) -> Any:
    """Return the plugin of that kind and name; refuse a broken or unknown one."""
    plugins = discover(kind)
    if name not in plugins.broken:
        check_known(name, plugins, f"no {kind}")
    return plugins[name]


def broken() -> dict[str, FedLoomError]:
    """Return the errors of all plugins that cannot be used, methods too, by name."""
    every = [manifest.discover(), *map(discover, OWN)]
    return {name: error for found in every for name, error in found.broken.items()}


def called(kind: str, name: str, call: Callable[[], Result]) -> Result:
    """Return what `call` returns; what a plugin's kind raises becomes one line that names it."""
    plugin = discover(kind).get(name)
    return call() if plugin is None else guarded(call, [plugin], kind)


class WithPlugins(Kinds):
    """All of a kind, one of OWN: FedLoom's, then those that plugins bring.

    Asking for one of a broken plugin raises the plugin's error.
    """

    def __init__(self, kind: str):
        self.kind, self.own = kind, OWN[kind]

    def __getitem__(self, name: str) -> type[Keys]:
        if name in discover(self.kind):
            return discover(self.kind)[name].keys()
        if name in self.own:
            return self.own[name]
        raise broken().get(name, KeyError(name))

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *discover(self.kind)])

    def __len__(self) -> int:
        return sum(1 for _ in self)
