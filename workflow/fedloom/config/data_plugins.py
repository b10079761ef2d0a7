"""Sources and schemes of plugins: source.toml and scheme.toml, read without importing.

A dataset or a partition of the config holds a plugin's options beside `source` or `scheme`, as it
holds the keys of FedLoom's own. fedloom.config.kind_plugins finds them.
"""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema, create_model

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Identifier, Keys
from fedloom.config.datasets import (
    ClassNames,
    ClassPerDomain,
    ImageSource,
    SourceKind,
    TestFraction,
)
from fedloom.config.kinds import Room
from fedloom.config.output_kinds import FigureKind, TableKind
from fedloom.config.partitions import ClientScheme, SchemeKind
from fedloom.hooks.discovery import Located
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


# FedLoom's own kinds, whose names a plugin cannot take; they lie on higher floors
OWN = {
    "source": Room("fedloom.data.sources", SourceKind),
    "scheme": Room("fedloom.data.schemes", SchemeKind),
    "table": Room("fedloom.report.tables", TableKind),
    "figure": Room("fedloom.report.figures", FigureKind),
}


class KindPlugin(Located):
    """A plugin that brings a kind of source, scheme, table or figure."""

    def check_name(self) -> None:
        """Check that FedLoom does not have the name."""
        if self.name in OWN[self.kind]:
            raise FedLoomError(f"name: FedLoom has its own {self.kind} '{self.name}'; rename this")

    @property
    def kind(self) -> str:
        """Which of these, as its TOML file is called."""
        return self._toml.stem


class DataPlugin(KindPlugin):
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
        self.check_name()
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
