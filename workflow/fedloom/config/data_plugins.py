"""Sources and schemes that plugins bring: source.toml and scheme.toml, read without importing.

A plugin is a folder with one of these files and plugin.py, found as methods are: in `plugins/` of
the checkout, or in an installed package with an entry point of the group `fedloom.sources` or
`fedloom.schemes`. Its options stand beside `source` or `scheme` in a dataset or a partition of the
config, as those of a source or a scheme of FedLoom's own do.
"""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema, create_model

from fedloom.common import schema
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.schema import Identifier, Keys
from fedloom.config.datasets import ClassNames, ClassPerDomain, ImageSource, TestFraction
from fedloom.config.kinds import Room
from fedloom.config.partitions import ClientScheme, SchemeKind
from fedloom.hooks import manifest
from fedloom.hooks.manifest import Found, Located, gather, read_toml
from fedloom.hooks.options import check_schemas, check_value


class PluginKeys(Keys):
    """The keys of a plugin's source or scheme: its options, and those that all have.

    A field has a name of its own, with the option as its alias, for an option may be called as a
    method of the class is.
    """

    options: ClassVar[frozenset[str]] = frozenset()

    @property
    def plain(self) -> dict[str, Any]:
        """The keys and their values: an option may be null, and the others are left out then."""
        values = self.model_dump(by_alias=True)
        return {k: v for k, v in values.items() if v is not None or k in self.options}


class PluginSource(PluginKeys, ImageSource):
    """The keys that every source of a plugin has."""

    class_names: ClassNames = None
    class_per_domain: ClassPerDomain = False
    test_fraction: TestFraction = 0.3


class PluginDomainScheme(PluginKeys, SchemeKind):
    """The keys of a plugin's scheme that divides by domains, which say how many clients it has."""


class PluginScheme(PluginKeys, ClientScheme):
    """The keys of every other scheme of a plugin."""


class DataToml(Keys):
    """source.toml or scheme.toml: what a plugin says of a source or a scheme that it brings."""

    name: Identifier
    """The folder's name."""
    description: str
    """What it reads, or what a client holds."""
    options: dict[Identifier, dict[str, Any]] = Field({})
    """An option without default must be given; each is checked by its schema."""


class SourceToml(DataToml):
    """source.toml: an option with format = "path" names files of the user's.

    The store is made again when these change.
    """


class SchemeToml(DataToml):
    """scheme.toml: what a plugin says of a scheme."""

    by_domain: bool = False
    """True if plugin.py has groups(domains, settings) in place of divide(labels, settings, rng);
    then the number of clients follows from the domains, and `clients` is no key."""


TOML: dict[str, type[DataToml]] = {"source": SourceToml, "scheme": SchemeToml}
# names that a plugin cannot take, which those of FedLoom's own modules have
OWN = {
    kind: {f.stem for f in (ROOT / f"workflow/fedloom/data/{kind}s").glob("*.py")} for kind in TOML
}


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

    @property
    def base(self) -> type[PluginKeys]:
        """The keys that every plugin of its kind has."""
        if self.kind == "source":
            return PluginSource
        return PluginDomainScheme if self.by_domain else PluginScheme

    def keys(self) -> type[PluginKeys]:
        """Return the model of an entry of the config, beside the key that names the plugin."""
        model = create_model(
            self.name,
            __base__=self.base,
            __doc__=self.description,
            **{f"option_{k}": _field(k, option) for k, option in self.option_schemas.items()},
        )
        model.options = frozenset(self.option_schemas)
        return model


def _field(name: str, option: dict[str, Any]) -> Any:
    """Return type and default of an option, which its JSON Schema checks."""

    def check(value: Any) -> Any:
        try:
            check_value(value, option, "")
        except FedLoomError as error:
            raise ValueError(str(error).removeprefix(": ")) from None
        return value

    kind = Annotated[Any, AfterValidator(check), WithJsonSchema(option)]
    about = option.get("description")
    return kind, Field(option.get("default", ...), alias=name, description=about)


def _read(kind: str, folder: Path, module: str | None) -> DataPlugin:
    """Read and check the source.toml or scheme.toml of a folder."""
    file = folder / f"{kind}.toml"
    content = schema.checked(TOML[kind], read_toml(file), f"{file}: ")
    if content.name in OWN[kind]:
        line = f"FedLoom has a {kind} '{content.name}' of its own; rename this one"
        raise FedLoomError(f"{folder}: {line}")
    check_schemas(content.options, f"{file}: options")
    plugin = DataPlugin(
        name=content.name,
        folder=folder,
        module=module,
        kind=kind,
        description=content.description,
        option_schemas=content.options,
        by_domain=getattr(content, "by_domain", False),
    )
    for name, option in content.options.items():
        if name in plugin.base.model_fields or name in (kind, "clients", "protocol"):
            raise FedLoomError(f"{file}: options.{name}: every {kind} has that key; rename it")
        if option.get("format") == "path" and option["type"] != "string":
            raise FedLoomError(f'{file}: options.{name}: a path is of the type "string"')
    return plugin


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
        raise FedLoomError(f"no {kind} '{name}'; {suggestion(name, list(plugins))}")
    return plugins[name]


def broken() -> dict[str, FedLoomError]:
    """Return the errors of all plugins that cannot be used, methods too, by name."""
    return manifest.discover().broken | discover("source").broken | discover("scheme").broken


@dataclass(frozen=True)
class WithPlugins:
    """The kinds of a room of FedLoom's own, and those that plugins bring.

    Attributes:
        kind: source or scheme.
    """

    room: Room
    kind: str

    def find(self, name: str) -> type[Keys] | None:
        """Return the keys of a source or a scheme; None if there is none of that name.

        Raises:
            FedLoomError: a plugin of that name is broken.
        """
        own = self.room.find(name)
        if own is None and name in discover(self.kind):
            return discover(self.kind)[name].keys()
        if own is None and name in broken():
            raise broken()[name]
        return own

    def names(self) -> list[str]:
        """Return the names of all sources or schemes, plugins' last."""
        return [*self.room.names(), *discover(self.kind)]
