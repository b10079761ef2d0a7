"""Sources and schemes that plugins bring: source.toml and scheme.toml, read without importing.

A plugin is a folder with one of these files and plugin.py, found as methods are: in `plugins/` of
the checkout, or in an installed package with an entry point of the group `fedloom.sources` or
`fedloom.schemes`. Its options stand beside `source` or `scheme` in a dataset or a partition of the
config, as those of a source or a scheme of FedLoom's own do.
"""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from fedloom.common import schema
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.hooks import manifest
from fedloom.hooks.manifest import Found, Located, gather, read_toml
from fedloom.hooks.options import check_schemas

SECTIONS = {"source": "dataset", "scheme": "partition"}  # kind -> $defs of the config's schema
# the keys that every source, every scheme of a plugin has, see $defs of the config's schema
COMMON: dict[str, dict[str, Any]] = {
    "source": {
        **schema.load("config")["$defs"]["chosen"],
        "test_fraction": {"$ref": "#/$defs/test_fraction", "default": 0.3},
        "class_names": {"$ref": "#/$defs/class_names"},
        "class_per_domain": {"$ref": "#/$defs/class_per_domain", "default": False},
        "image_size": {"$ref": "#/$defs/image_size"},
        "resize": {"$ref": "#/$defs/resize"},
        "skip_unreadable": {"$ref": "#/$defs/skip_unreadable", "default": False},
    },
    "scheme": {
        "held_out": {"$ref": "#/$defs/held_out", "default": 0},
        "shots": {"$ref": "#/$defs/shots"},
        "seed": {"$ref": "#/$defs/partition_seed"},
        "protocol": {"$ref": "#/$defs/protocol"},
    },
}
CLIENTS = {"type": "integer", "minimum": 1}


@dataclass(frozen=True)
class DataPlugin(Located):
    """A source or a scheme of a plugin.

    Attributes:
        kind: source or scheme.
        option_schemas: a JSON Schema per option.
        by_domain: True for a scheme that divides by domains, with as many clients as these give.
    """

    kind: str
    description: str
    option_schemas: dict[str, dict]
    by_domain: bool

    @property
    def paths(self) -> list[str]:
        """The options that name files of the user's."""
        return [k for k, option in self.option_schemas.items() if option.get("format") == "path"]

    def entry(self) -> dict[str, Any]:
        """Return the JSON Schema of an entry of the config, as $defs has it of FedLoom's own."""
        clients = {"clients": CLIENTS} if self.kind == "scheme" and not self.by_domain else {}
        given = [name for name, option in self.option_schemas.items() if "default" not in option]
        own = {self.kind: {"const": self.name}} | clients | self.option_schemas
        together = {"resize": ["image_size"]} if self.kind == "source" else {}
        return {
            "description": self.description,
            "dependentRequired": together,
            "type": "object",
            "additionalProperties": False,
            "required": [self.kind, *clients, *given],
            "properties": own | COMMON[self.kind],
        }


def _read(kind: str, folder: Path, module: str | None) -> DataPlugin:
    """Read and check the source.toml or scheme.toml of a folder."""
    file = folder / f"{kind}.toml"
    root = schema.load(kind)
    content = read_toml(file)
    schema.check(content, root, f"{file}: ")
    content = schema.filled(content, root, root)
    if content["name"] in schema.load("config")["$defs"][SECTIONS[kind]]:
        line = f"FedLoom has a {kind} '{content['name']}' of its own; rename this one"
        raise FedLoomError(f"{folder}: {line}")
    check_schemas(content["options"], f"{file}: options")
    for name, option in content["options"].items():
        if name in COMMON[kind] or name in (kind, "clients"):
            raise FedLoomError(f"{file}: options.{name}: every {kind} has that key; rename it")
        if option.get("format") == "path" and option["type"] != "string":
            raise FedLoomError(f'{file}: options.{name}: a path is of the type "string"')
    return DataPlugin(
        name=content["name"],
        folder=folder,
        module=module,
        kind=kind,
        description=content["description"],
        option_schemas=content["options"],
        by_domain=content.get("by_domain", False),
    )


@cache
def discover(kind: str, folder: Path = ROOT / "plugins") -> Found[DataPlugin]:
    """Return the plugins of a kind: those of `folder` and installed ones.

    Args:
        kind: source or scheme.
    """
    return gather(kind, folder, partial(_read, kind))


def find(kind: str, name: str) -> DataPlugin:
    """Return the plugin of that kind and name.

    Raises:
        FedLoomError: it is broken, or there is none; suggests the nearest.
    """
    plugins = discover(kind)
    if name not in plugins and name not in plugins.broken:
        raise FedLoomError(f"no {kind} '{name}'; {schema.suggestion(name, list(plugins))}")
    return plugins[name]


def broken() -> dict[str, FedLoomError]:
    """Return the errors of all plugins that cannot be used, methods too, by name."""
    return manifest.discover().broken | discover("source").broken | discover("scheme").broken


def entries(section: str) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of every kind of entry that a section of the config may have.

    Args:
        section: datasets, partitions, backbones, tables or figures.
    """
    name = section.removesuffix("s")
    kinds = schema.load("config")["$defs"][name]
    for kind, of in SECTIONS.items():
        if of == name:
            kinds = kinds | {key: plugin.entry() for key, plugin in discover(kind).items()}
    if section in ("tables", "figures"):
        common = schema.load("config")["$defs"]["shown"]["properties"]
        return {
            key: kind | {"properties": kind["properties"] | common} for key, kind in kinds.items()
        }
    return kinds
