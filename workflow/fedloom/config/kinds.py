"""Find the kinds of entry that a section of the config may have.

A kind is a model of an entry's keys, with a name. FedLoom's own sources, schemes, tables and
figures are classes in modules of higher layers (docs/architecture.md). Plugins bring further kinds:
a source or a scheme states its keys in its TOML file, and a table or a figure in plugin.py.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, Field, WithJsonSchema, create_model, model_validator

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.common.key_path import CONFIG, KeyPath
from fedloom.common.schema import Identifier, Item, Keys, Number, checked, require_other_keys
from fedloom.config.datasets import ImageSize, PluginSource, SourceKind
from fedloom.config.output_kinds import FigureKind, TableKind
from fedloom.config.partitions import ClientScheme, SchemeKind
from fedloom.config.settings import KindSpec
from fedloom.hooks import manifest
from fedloom.hooks.discovery import PluginCatalogue, PluginManifest, discover_plugins
from fedloom.hooks.loader import import_plugin
from fedloom.hooks.options import check_schemas, find_fault
from fedloom.hooks.plugin_code import run_plugin_code
from fedloom.machine.install import plugin_folders

# by section, the key of an entry that names its kind
SELECTOR_KEY = {
    "datasets": "source",
    "partitions": "scheme",
    "backbones": "library",
    "tables": "kind",
    "figures": "kind",
}
RESNETS = Literal[
    "resnet18", "resnet34", "resnet50",
    "resnet8_wide", "resnet20", "resnet32", "resnet44", "resnet56",
]  # fmt: skip
Result = TypeVar("Result")
OfChannels = Annotated[list[Item], Field(min_length=1, max_length=3)]


class BackboneKind(Keys):
    """The keys of every backbone."""

    mean: OfChannels[Annotated[Number, Field(ge=0, le=1)]] | None = None
    """Mean of each channel, which was subtracted from images (with values from 0 to 1) when the
    weights were trained. One number stands for all channels. Default: the library's value for the
    name or tag, which may not fit weights from a file."""
    std: OfChannels[Annotated[Number, Field(gt=0, le=1)]] | None = None
    """Standard deviation of each channel, by which it was divided after that. It must be set
    together with `mean`."""
    cache_format: Literal["bf16", "float16"] | None = None
    """Number format of cached features and patches. Default: float32 for features, float16 for
    patches."""

    @model_validator(mode="after")
    def _mean_and_std(self) -> Self:
        return require_other_keys(self, mean="std", std="mean")


class Timm(BackboneKind):
    """Any vision transformer of timm that has a class token."""

    name: str
    """Name of the model in timm, or `micro_vit`."""
    weights: str
    """`hub` for the weights that timm downloads, or a .safetensors or .npz file."""
    image_size: ImageSize | None = None
    """Side of the input images in pixels. Default: the model's own."""


class OpenClip(BackboneKind):
    """A CLIP model of open_clip with a causal text encoder that is read at the EOT token, such as
    OpenAI's or LAION's.
    """

    name: str
    """Name of the model in open_clip, such as ViT-B-16-quickgelu, or `micro_clip`."""
    weights: str
    """Tag of open_clip's weights, which are downloaded from a hub, such as `openai`; or a
    .safetensors file."""
    quick_gelu: bool | None = None
    """Whether the weights were trained with QuickGELU, as OpenAI's were. A file of weights does not
    say this. Default: true for models whose name ends with -quickgelu."""

    @model_validator(mode="after")
    def _micro_clip_has_gelu(self) -> Self:
        if self.quick_gelu and self.name == "micro_clip":
            raise ValueError("micro_clip has no QuickGELU; leave out quick_gelu")
        return self


class Torchvision(BackboneKind):
    """A ResNet, for methods that can train one."""

    name: RESNETS
    """Name of the model: `resnet18`, `resnet34` and `resnet50` are torchvision's for images of 224
    pixels, the others are for images of 32 pixels. `resnet8_wide` is four times as wide (CReFF,
    FEDIC)."""
    weights: str
    """`none` for random weights, the same in every run, or a .safetensors file with torchvision's
    parameter names."""
    image_size: Annotated[int, Field(ge=8, le=4096)] | None = None
    """Side of the input images in pixels. Default: 224 or 32, depending on the model."""


class PluginKeys(Keys):
    """The options of a plugin's source or scheme."""

    @property
    def plain(self) -> JsonDict:
        """The keys and their values; of the keys that are null, only options are included."""
        options = type(self).__annotations__
        return {k: v for k, v in self.model_dump().items() if v is not None or k in options}


def class_values(file: Path) -> Iterator[tuple[str, str]]:
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
MOVED_TO_SPEC = {field.name: field.name for field in fields(KindSpec)}
MOVED_TO_SPEC["artefact_name"] = "artefact"


class KindPlugin(PluginManifest):
    """A plugin that adds a kind of table or figure; its TOML file holds only the name."""

    @property
    def kind(self) -> str:
        """The name of its TOML file without suffix: source, scheme, table or figure."""
        return self._toml.stem

    def _refuse_moved(self) -> None:
        """Refuse a class variable that is a field of KindSpec today, before the import fails."""
        if self.kind not in ("table", "figure"):
            return
        for name, value in class_values(self.file):
            if name in MOVED_TO_SPEC:
                raise FedLoomError(
                    f"{self.file}: {name} = {value} is now a field of `spec`; write "
                    f"`spec = KindSpec({MOVED_TO_SPEC[name]}={value})`, with KindSpec of "
                    "fedloom.report.output_toolbox"
                )

    def keys(self) -> type[Keys]:
        """Return the class in plugin.py that has the kind's keys, and that draws or builds it.

        Raises:
            FedLoomError: plugin.py has no such class, or several, or the class lacks a method.
        """
        base = KINDS_FROM_PLUGINS[self.kind].base
        self._refuse_moved()
        found = subclasses_in(import_plugin(self), base)
        if len(found) != 1:
            raise FedLoomError(
                f"{self.file}: must have one class derived from {base.__name__}, got {len(found)}"
            )

        (model,) = found
        # a table has the method `build`, or else the methods that a table of methods needs
        needed = ("measure", "column", "describe")
        if self.kind == "figure":
            needed = ("draw",)
        if not hasattr(model, "build"):
            for name in needed:
                if not hasattr(model, name):
                    raise FedLoomError(f"{self.file}: {model.__name__} must have the method {name}")
        return model


class DataPlugin(KindPlugin):
    """A plugin that adds a source or a scheme: the keys of source.toml or scheme.toml."""

    description: str
    """Says which data the source reads, or which images a client of the scheme holds."""
    option_schemas: dict[Identifier, JsonDict] = Field({}, alias="options")
    """A JSON Schema of every option. An option without a default must be given. In a source, an
    option with format = "path" names files of the user; when these change, the store is made
    again."""

    def check(self, where: KeyPath) -> None:
        """Check the options; their names must differ from the model's keys and methods."""
        check_schemas(self.option_schemas, where / "options")
        for name in self.option_schemas:
            taken = name in self.base.model_fields or hasattr(self.base, name)
            if taken or name in (self.kind, "protocol"):
                raise (where / "options" / name).error(f"a {self.kind} has that key; rename it")

    @property
    def paths(self) -> list[str]:
        """The names of the options that name files of the user."""
        return [k for k, option in self.option_schemas.items() if option.get("format") == "path"]

    @property
    def base(self) -> type[Keys]:
        """The model of the keys that every plugin of this kind has beside its options."""
        return PluginSource if self.kind == "source" else ClientScheme

    def keys(self) -> type[Keys]:
        """Return the model of an entry of the config, without the key that names the plugin."""
        fields: dict[str, Any] = {k: _field(option) for k, option in self.option_schemas.items()}
        bases = (PluginKeys, self.base)
        about = self.description
        return create_model(self.name, __base__=bases, __doc__=about, **fields)


def _field(option: JsonDict) -> tuple[object, object]:
    """Return an option as a field of a model: a type, which checks its schema, and a default."""

    def check(value: JsonValue) -> JsonValue:
        fault = find_fault(value, option)
        if fault is None:
            return value
        place = "".join(f"[{step}]" for step in fault.steps)
        raise ValueError(f"{place}: {fault.message}" if place else fault.message)

    kind = Annotated[Any, AfterValidator(check), WithJsonSchema(option)]
    return kind, Field(option.get("default", ...), description=option.get("description"))


@cache
def plugins_of_kind(kind: str, folder: Path | None = None) -> PluginCatalogue[Any]:
    """Return the plugins of a kind, such as "source"; see `discover_methods` for methods."""
    model = DataPlugin if kind in ("source", "scheme") else KindPlugin
    return discover_plugins(kind, [folder] if folder else plugin_folders(), model)


def broken() -> dict[str, FedLoomError]:
    """Return the errors of all plugins that cannot be used, including methods, by plugin name."""
    errors = dict(manifest.discover_methods().errors)
    for kind in KINDS_FROM_PLUGINS:
        errors.update(plugins_of_kind(kind).errors)
    return errors


def call_kind(kind: str, name: str, call: Callable[[], Result]) -> Result:
    """Call a function of the kind `name`, and return its result.

    If a plugin brings the kind, an error becomes one line that names the plugin.
    """
    plugin = plugins_of_kind(kind).get(name)
    if plugin is None:
        return call()
    return run_plugin_code(call, [plugin], kind)


def subclasses_in(module: ModuleType, base: type[Keys]) -> list[type[Keys]]:
    """Return the classes that are derived from `base` and defined in a module itself."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    return [
        each for each in classes if each.__module__ == module.__name__ and issubclass(each, base)
    ]


class KindRegistry(Mapping[str, type[Keys]]):
    """All kinds of source, scheme, table or figure, by name: FedLoom's own, then those of plugins.

    If the plugin of a kind is broken, looking the kind up raises the plugin's error.
    """

    def __init__(self, kind: str, base: type[Keys], module: str):
        """Make a registry.

        Args:
            kind: what its members are, such as "source".
            base: the class from which all members are derived.
            module: the module that lists FedLoom's own members. It belongs to a higher layer, so it
                is imported only when a member is looked up.
        """
        self.kind = kind
        self.base = base
        self._module = module

    @property
    def own(self) -> dict[str, type[Keys]]:
        """FedLoom's own kinds by name."""
        return import_module(self._module).KINDS

    def __getitem__(self, name: str) -> type[Keys]:
        plugin = plugins_of_kind(self.kind).get(name)
        if plugin is None:
            if name in self.own:
                return self.own[name]
            raise broken().get(name, KeyError(name))
        if name in self.own:
            raise FedLoomError(
                f"{plugin.folder / self.kind}.toml: name: FedLoom has its own {self.kind} "
                f"'{name}'; rename this"
            )
        return plugin.keys()

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *plugins_of_kind(self.kind)])

    def __len__(self) -> int:
        return len(self.own) + len(plugins_of_kind(self.kind))


# the kinds to which plugins may add
KINDS_FROM_PLUGINS = {
    "source": KindRegistry("source", SourceKind, "fedloom.data.sources.all_sources"),
    "scheme": KindRegistry("scheme", SchemeKind, "fedloom.data.schemes.all_schemes"),
    "table": KindRegistry("table", TableKind, "fedloom.report.tables.all_tables"),
    "figure": KindRegistry("figure", FigureKind, "fedloom.report.figures.all_figures"),
}
# the kinds of entry of each section of the config
KINDS: dict[str, Mapping[str, type[Keys]]] = {
    "datasets": KINDS_FROM_PLUGINS["source"],
    "partitions": KINDS_FROM_PLUGINS["scheme"],
    "backbones": {"timm": Timm, "open_clip": OpenClip, "torchvision": Torchvision},
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
    return Entry(str(name), checked(model, keys, where))
