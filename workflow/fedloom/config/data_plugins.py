"""Sources and schemes of plugins: source.toml and scheme.toml, read without importing.

They are found as methods are, see fedloom.hooks.manifest. A dataset or a partition of the config
holds a plugin's options beside `source` or `scheme`, as it holds the keys of FedLoom's own.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema, create_model

from fedloom.common.checkout import LIBRARY, plugin_folders
from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.schema import Identifier, Keys
from fedloom.config.datasets import ClassNames, ClassPerDomain, ImageSource, TestFraction
from fedloom.config.kinds import Kinds
from fedloom.config.partitions import ClientScheme, SchemeKind
from fedloom.hooks import manifest
from fedloom.hooks.discovery import Found, Located, gather
from fedloom.hooks.options import check_schemas, check_value


class PluginKeys(Keys):
    """The keys of a plugin's source or scheme: its options, and those that all have.

    An option may be called as a method of the class is, so that its field has another name, and
    the option is the field's alias.
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


class DataPlugin(Located):
    """A source or a scheme of a plugin: the keys of source.toml or scheme.toml."""

    description: str
    """What it reads, or what a client holds."""
    option_schemas: dict[Identifier, dict[str, Any]] = Field({}, alias="options")
    """A JSON Schema of every option; one without default must be given. If an option of a source
    has format = "path", it names the user's files, and the store is made again when these change.
    """
    by_domain: bool = False
    """True if a scheme has groups(domains, settings) in place of divide(labels, settings, rng);
    then the number of clients follows from the domains, and `clients` is not a key."""

    def check(self, content: dict[str, Any]) -> None:
        """Check the options, and that FedLoom does not have the name or an option's key."""
        if self.name in OWN[self.kind]:
            raise FedLoomError(f"name: FedLoom has its own {self.kind} '{self.name}'; rename this")
        if self.kind == "source" and self.by_domain:
            raise FedLoomError("by_domain: only a scheme declares it; remove it")
        check_schemas(self.option_schemas, "options")
        for name, option in self.option_schemas.items():
            if name in self.base.model_fields or name in (self.kind, "clients", "protocol"):
                line = f"every {self.kind} has that key; rename it"
                raise FedLoomError(f"options.{name}: {line}")
            if option.get("format") == "path" and option["type"] != "string":
                raise FedLoomError(f'options.{name}: a path is of the type "string"')

    @property
    def kind(self) -> str:
        """Source or scheme."""
        return self._toml.stem

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


# the packages of FedLoom's own sources and schemes, whose names a plugin cannot take
PACKAGES = {"source": "fedloom.data.sources", "scheme": "fedloom.data.schemes"}
OWN = {
    kind: {file.stem for file in (LIBRARY / name.replace(".", "/")).glob("*.py")}
    for kind, name in PACKAGES.items()
}


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


@cache
def discover(kind: str, folder: Path | None = None) -> Found[DataPlugin]:
    """Return the plugins of a kind, source or scheme, as `manifest.discover` does methods."""
    return gather(kind, [folder] if folder else plugin_folders(), DataPlugin)


def find(kind: str, name: str) -> DataPlugin:
    """Return the plugin of that kind and name; refuse a broken or unknown one."""
    plugins = discover(kind)
    if name not in plugins.broken:
        check_known(name, plugins, f"no {kind}")
    return plugins[name]


def broken() -> dict[str, FedLoomError]:
    """Return the errors of all plugins that cannot be used, methods too, by name."""
    return manifest.discover().broken | discover("source").broken | discover("scheme").broken


class WithPlugins(Kinds):
    """The sources or schemes of FedLoom (`room`), then those that plugins bring (of `kind`).

    Asking for one of a broken plugin raises the plugin's error.
    """

    def __init__(self, room: Kinds, kind: str):
        self.room, self.kind = room, kind

    def __getitem__(self, name: str) -> type[Keys]:
        own = self.room.get(name)
        if own is not None:
            return own
        if name in discover(self.kind):
            return discover(self.kind)[name].keys()
        raise broken().get(name, KeyError(name))

    def __iter__(self) -> Iterator[str]:
        return iter([*self.room, *discover(self.kind)])

    def __len__(self) -> int:
        return sum(1 for _ in self)
