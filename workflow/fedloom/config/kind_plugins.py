"""Define plugins that add sources, schemes, backbones, tables or figures, and find them.

A source, a scheme or a backbone states its keys in its TOML file, and a table or a figure in
plugin.py.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, WithJsonSchema, create_model

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.common.key_path import KeyPath
from fedloom.common.receipts import digest, sha256
from fedloom.common.schema import Identifier, Keys, validate
from fedloom.config.backbones import BackboneKind, PluginBackbone
from fedloom.config.datasets import PluginSource, SourceKind
from fedloom.config.output_kinds import FigureKind, TableKind
from fedloom.config.partitions import ClientScheme, SchemeKind
from fedloom.config.settings import KindSpec
from fedloom.hooks import manifest
from fedloom.hooks.discovery import PluginCatalogue, PluginManifest, discover_plugins
from fedloom.hooks.loader import import_plugin
from fedloom.hooks.options import check_schemas, find_fault
from fedloom.hooks.plugin_code import run_plugin_code
from fedloom.machine.install import plugin_folders, resource

Result = TypeVar("Result")

# by the type of a plugin, the class from which all kinds of this type are derived
BASES: dict[str, type[Keys]] = {
    "source": SourceKind,
    "scheme": SchemeKind,
    "backbone": BackboneKind,
    "table": TableKind,
    "figure": FigureKind,
}


# by the type of a plugin that states its keys in its TOML file, the keys that it has beside them
KEYS_BESIDE_OPTIONS: dict[str, type[Keys]] = {
    "source": PluginSource,
    "scheme": ClientScheme,
    "backbone": PluginBackbone,
}
# the key of a backbone's settings for a digest of the files that a plugin's options name
FILES_DIGEST = "files_sha256"
# by the type of a plugin, keys that FedLoom itself gives an entry; no option may be named so
RESERVED: dict[str, tuple[str, ...]] = {
    "source": ("source", "protocol"),
    "scheme": ("scheme", "protocol"),
    "backbone": (
        "library", "precision", "compile", "gradient_checkpointing", "tokenizer",
        "tokenizer_sha256", FILES_DIGEST,
    ),
}  # fmt: skip


class _PluginKeys(Keys):
    """The options of a plugin's source, scheme or backbone."""

    @property
    def plain(self) -> JsonDict:
        """The keys and their values; of the keys that are null, only options are included."""
        options = type(self).__annotations__
        return {k: v for k, v in self.model_dump().items() if v is not None or k in options}


def _class_values(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each assignment in the classes of a Python file, as text."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        # the import of the file, which follows, raises the error
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                yield statement.targets[0].id, ast.unparse(statement.value)


# maps the class variables that kinds of tables and figures once had to today's fields of KindSpec
_MOVED_TO_SPEC = {field.name: field.name for field in fields(KindSpec)}
_MOVED_TO_SPEC["artefact_name"] = "artefact"


class KindManifest(PluginManifest):
    """A plugin that adds a kind of table or figure; its TOML file holds only the name."""

    @property
    def plugin_type(self) -> str:
        """The name of its TOML file without suffix, such as source or figure."""
        return self._toml.stem

    def _refuse_moved(self) -> None:
        """Refuse a class variable that is a field of KindSpec today, before the import fails."""
        if self.plugin_type not in ("table", "figure"):
            return
        for name, value in _class_values(self.file):
            if name in _MOVED_TO_SPEC:
                raise FedLoomError(
                    f"{self.file}: {name} = {value} is now a field of `spec`; write "
                    f"`spec = KindSpec({_MOVED_TO_SPEC[name]}={value})`, with KindSpec of "
                    "fedloom.report.output_toolbox"
                )

    def keys(self) -> type[Keys]:
        """Return the class in plugin.py that has the kind's keys, and that draws or builds it.

        Raises:
            FedLoomError: plugin.py has no such class, or several, or the class lacks a method.
        """
        base = BASES[self.plugin_type]
        self._refuse_moved()
        found = subclasses_in(import_plugin(self), base)
        if len(found) != 1:
            raise FedLoomError(
                f"{self.file}: must have one class derived from {base.__name__}, got {len(found)}"
            )

        (model,) = found
        # a table has the method `build`, or else the methods that a table of methods needs
        needed = ("measure", "column", "describe")
        if self.plugin_type == "figure":
            needed = ("draw",)
        if not hasattr(model, "build"):
            for name in needed:
                if not hasattr(model, name):
                    raise FedLoomError(f"{self.file}: {model.__name__} must have the method {name}")
        return model


class ManifestWithOptions(KindManifest):
    """A plugin that states the keys of its kind: source.toml, scheme.toml or backbone.toml."""

    description: str
    """Says which data a source reads, which images a client of a scheme holds, or which models a
    library of backbones has."""
    option_schemas: dict[Identifier, JsonDict] = Field({}, alias="options")
    """A JSON Schema of every option. An option without a default must be given. An option with
    format = "path" names files of the user; when these change, the store of a source is made again,
    and a backbone counts as another."""

    def check(self, where: KeyPath) -> None:
        """Check the options; their names must differ from the model's keys and methods."""
        check_schemas(self.option_schemas, where / "options")
        for name in self.option_schemas:
            taken = name in self.base.model_fields or hasattr(self.base, name)
            if taken or name in RESERVED[self.plugin_type]:
                raise (where / "options" / name).error(
                    f"a {self.plugin_type} has that key; rename it"
                )

    @property
    def paths(self) -> list[str]:
        """The names of the options that name files of the user."""
        return [k for k, option in self.option_schemas.items() if option.get("format") == "path"]

    @property
    def base(self) -> type[Keys]:
        """The model of the keys that every plugin of this kind has beside its options."""
        return KEYS_BESIDE_OPTIONS[self.plugin_type]

    def keys(self) -> type[Keys]:
        """Return the model of an entry of the config, without the key that names the plugin."""
        fields: dict[str, Any] = {k: _field(option) for k, option in self.option_schemas.items()}
        bases = (_PluginKeys, self.base)
        about = self.description
        return create_model(self.name, __base__=bases, __doc__=about, **fields)


class BackboneManifest(ManifestWithOptions):
    """A plugin that adds a library of backbones: the keys of backbone.toml."""

    example: JsonDict
    """An entry of the config, without `library` and `weights`. `fedloom check` builds this model,
    so that it should be a small one for small images."""
    has_hub: bool = False
    """Whether the plugin downloads weights for `weights: hub`. If it does not, planning refuses
    that value."""

    def check(self, where: KeyPath) -> None:
        """Check the options, and the example by them."""
        super().check(where)
        for name in self.paths:
            if self.option_schemas[name].get("type") != "string":
                raise (where / "options" / name).error(
                    'must have the type "string", since it names a file or a folder'
                )
        self.example_entry(where)

    def keys(self) -> type[Keys]:
        """Return the model of an entry of the config, without the key `library`."""
        model: Any = super().keys()
        model.has_hub = self.has_hub
        return model

    def digest_of_files(self, settings: JsonDict) -> str | None:
        """Return a digest of the contents of all files that options name; None if there are none.

        Raises:
            FedLoomError: an option names a file or folder that does not exist; the error begins
                with the option's name.
        """
        found = {}
        for name in self.paths:
            if settings.get(name):
                found[name] = _digest_of_path(name, resource(settings[name]))
        if not found:
            return None
        return digest(found)

    def example_entry(self, where: KeyPath | None = None) -> JsonDict:
        """Return the keys and values of the example, with random weights.

        Raises:
            InvalidKeyError: a key of the example is wrong.
        """
        place = (where or KeyPath(str(self._toml))) / "example"
        values: Any = validate(self.keys(), self.example | {"weights": "none"}, place)
        return values.plain


def _digest_of_path(name: str, path: Path) -> JsonDict:
    """Return the sha256 of a file, or of each file in a folder, by its path below the folder."""
    if path.is_file():
        return {"": sha256(path)}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    if not files:
        raise FedLoomError(f"{name}: no file at '{path}'; correct the path")
    return {str(file.relative_to(path)): sha256(file) for file in files}


# by the type of a plugin, the model of its TOML file; that of all others is KindManifest
MANIFESTS: dict[str, type[KindManifest]] = {
    "source": ManifestWithOptions,
    "scheme": ManifestWithOptions,
    "backbone": BackboneManifest,
}


def _field(option: JsonDict) -> tuple[object, object]:
    """Return an option as a field of a model: a type, which checks its schema, and a default."""

    def check(value: JsonValue) -> JsonValue:
        fault = find_fault(value, option)
        if fault is None:
            return value
        place = "".join(f"[{step}]" for step in fault.steps)
        raise ValueError(f"{place}: {fault.message}" if place else fault.message)

    field_type = Annotated[Any, AfterValidator(check), WithJsonSchema(option)]
    return field_type, Field(option.get("default", ...), description=option.get("description"))


@cache
def plugins_of_type(plugin_type: str, folder: Path | None = None) -> PluginCatalogue[Any]:
    """Return the plugins of a type, such as "source"; see `discover_methods` for methods."""
    model = MANIFESTS.get(plugin_type, KindManifest)
    return discover_plugins(plugin_type, [folder] if folder else plugin_folders(), model)


def broken_plugins() -> dict[str, FedLoomError]:
    """Return the errors of all plugins that cannot be used, including methods, by plugin name."""
    errors = dict(manifest.discover_methods().errors)
    for plugin_type in BASES:
        errors.update(plugins_of_type(plugin_type).errors)
    return errors


def call_kind(plugin_type: str, name: str, call: Callable[[], Result]) -> Result:
    """Call a function of the kind `name`, and return its result.

    If a plugin brings the kind, an error becomes one line that names the plugin.
    """
    plugin = plugins_of_type(plugin_type).get(name)
    if plugin is None:
        return call()
    return run_plugin_code(call, [plugin], plugin_type)


def path_keys(library: str) -> list[str]:
    """Return the keys of a library's backbones that name files or folders beside the weights."""
    plugin = plugins_of_type("backbone").get(library)
    if plugin is not None:
        return plugin.paths
    return ["tokenizer"]


def missing_plugin(where: object, name: str) -> FedLoomError:
    """Return the error about a plugin that is not here; it begins with `where`."""
    return FedLoomError(
        f"{where}: needs the plugin '{name}', which is not here; install the package that has it, "
        "or put its folder below plugins"
    )


def subclasses_in(module: ModuleType, base: type[Keys]) -> list[type[Keys]]:
    """Return the classes that are derived from `base` and defined in a module itself."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    return [
        each for each in classes if each.__module__ == module.__name__ and issubclass(each, base)
    ]
