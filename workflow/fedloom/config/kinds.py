"""Find the kinds of entry that a section of the config may have, and check entries by them.

A kind is a model of an entry's keys, with a name. FedLoom's own sources, schemes, tables and
figures are classes in modules of higher floors (docs/architecture.md). Plugins bring further kinds
(fedloom.config.kind_plugins).
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import CONFIG
from fedloom.common.schema import Keys, validate
from fedloom.config.kind_plugins import broken_plugins, plugins_of_type

# by section, the key of an entry that names its kind
SELECTOR_KEY = {
    "datasets": "source",
    "partitions": "scheme",
    "backbones": "library",
    "tables": "kind",
    "figures": "kind",
}


class _KindRegistry(Mapping[str, type[Keys]]):
    """All kinds of entry of a section, by name: FedLoom's own, then those of plugins.

    If the plugin of a kind is broken, looking the kind up raises the plugin's error.
    """

    def __init__(self, plugin_type: str, module: str):
        """Make a registry.

        Args:
            plugin_type: the type of plugins that add members, such as "source".
            module: the module that lists FedLoom's own members. It belongs to a higher floor, so it
                is imported only when a member is looked up.
        """
        self.plugin_type = plugin_type
        self._module = module

    @property
    def own(self) -> dict[str, type[Keys]]:
        """FedLoom's own kinds by name."""
        return import_module(self._module).KINDS

    def __getitem__(self, name: str) -> type[Keys]:
        plugin = plugins_of_type(self.plugin_type).get(name)
        if plugin is None:
            if name in self.own:
                return self.own[name]
            raise broken_plugins().get(name, KeyError(name))
        if name in self.own:
            file = plugin.folder / f"{self.plugin_type}.toml"
            raise FedLoomError(
                f"{file}: name: FedLoom has its own {self.plugin_type} '{name}'; rename this"
            )
        return plugin.keys()

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *plugins_of_type(self.plugin_type)])

    def __len__(self) -> int:
        return len(self.own) + len(plugins_of_type(self.plugin_type))


# The kinds to which plugins may add. The modules that list FedLoom's own kinds are named as
# strings: they lie on higher floors, and nothing would import them in time to add themselves here
# (docs/decisions.md, section 25).
KINDS_FROM_PLUGINS = {
    "source": _KindRegistry("source", "fedloom.data.sources.all_sources"),
    "scheme": _KindRegistry("scheme", "fedloom.data.schemes.all_schemes"),
    "backbone": _KindRegistry("backbone", "fedloom.config.backbones"),
    "table": _KindRegistry("table", "fedloom.report.tables.all_tables"),
    "figure": _KindRegistry("figure", "fedloom.report.figures.all_figures"),
}
# the kinds of entry of each section of the config
KINDS: dict[str, Mapping[str, type[Keys]]] = {
    "datasets": KINDS_FROM_PLUGINS["source"],
    "partitions": KINDS_FROM_PLUGINS["scheme"],
    "backbones": KINDS_FROM_PLUGINS["backbone"],
    "tables": KINDS_FROM_PLUGINS["table"],
    "figures": KINDS_FROM_PLUGINS["figure"],
}


class Entry(NamedTuple):
    """An entry of a section, as its kind checked it."""

    kind: str
    # an instance of the kind: the values of all keys, with defaults for those that are not given
    values: Any


def check_entry(section: str, label: str, entry: JsonDict) -> Entry:
    """Return an entry of the config, checked against the keys of its kind.

    Raises:
        InvalidKeyError: the kind is unknown or of a broken plugin, or a key is wrong.
    """
    named_by = SELECTOR_KEY[section]
    kinds = KINDS[section]
    where = CONFIG / section / label
    name = entry.get(named_by)
    try:
        model = kinds.get(name) if isinstance(name, str) else None
    except FedLoomError as error:
        # the kind is of a broken plugin
        raise (where / named_by).error(str(error)) from None
    if model is None:
        raise (where / named_by).error(f"no {named_by} '{name}'; {suggestion(str(name), kinds)}")
    keys = {key: value for key, value in entry.items() if key != named_by}
    return Entry(str(name), validate(model, keys, where))
