"""What plugins say of themselves in method.toml, read without importing them.

A plugin is a folder with `method.toml` and `plugin.py`, and more modules if it likes: in `plugins/`
of the checkout, or in an installed package that declares an entry point of the group
`fedloom.methods`. A source or a scheme has `source.toml` or `scheme.toml` in its place, and the
group `fedloom.sources` or `fedloom.schemes` (see fedloom.config.data_plugins).
"""

import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypeVar

import pydantic
from pydantic import ConfigDict, Field, ValidationError, with_config
from typing_extensions import TypedDict

from fedloom.common import schema
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, in_words, shortened, suggestion
from fedloom.common.folders import read_text
from fedloom.hooks.options import check_schemas, fill_in
from fedloom.hooks.training import DEFAULTS, OF_THE_PAPER, Training

FORWARD_INPUTS = {"vit": ("images",), "clip": ("images", "texts")}  # of a method that does not say
NEEDS = {"vit": ("features", "prototypes"), "clip": ("features", "patches")}  # that a family has
PACKAGE = "fedloom_plugins"  # the package that stands for plugins/ of the checkout
NO_WEIGHTS = ("prompts", "head")  # an option `train` that names no weights of the backbone
PARTS = {"": "whole model", "prompts": "prompts + head", "head": "head"}  # by an option `train`
FILES = ("method.toml", "source.toml", "scheme.toml")  # a plugin's folder has one of them
ALIASES = {"training_defaults": "training", "option_schemas": "options"}  # fields, by their keys
OF_WRAPPERS = ("preserves", "updates")  # keys that only a wrapper declares
OF_BOTH = ("kind", "name", "title", "paper", "look", "options")  # all others are a method's

STRICT = ConfigDict(
    extra="forbid", strict=True, allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
)
Name = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
Item = TypeVar("Item")
Condition = bool | dict[str, Any]
Several: TypeAlias = Annotated[tuple[Item, ...], Field(strict=False)]  # TOML has lists
Place = tuple[Path, str | None]  # a plugin's folder, and its package if it is installed


class Found(dict[str, Item]):
    """Things by name; one that is broken is missing, and harms nobody who does not ask for it.

    Attributes:
        broken: the error of each that is broken, by its name or that of its folder.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, FedLoomError] = {}

    def __missing__(self, name: str) -> Item:
        raise self.broken.get(name, KeyError(name))


@dataclass(frozen=True)
class Located:
    """A plugin of any kind.

    Attributes:
        folder: where plugin.py and the file of `FILES` lie.
        module: dotted name of the installed package; None for a folder of the checkout.
    """

    name: Name
    folder: Path
    module: str | None

    @property
    def package(self) -> str:
        """The dotted name of the package that plugin.py is imported from."""
        return self.module or f"{PACKAGE}.{self.name}"

    @property
    def file(self) -> Path:
        """The module that holds its functions."""
        return self.folder / "plugin.py"


@with_config(STRICT)
class Paper(TypedDict):
    """Where a method was published; `link` is a DOI, an arXiv number or an address."""

    citation: str
    link: NotRequired[str]
    equations: NotRequired[str]


@with_config(STRICT)
class Artefact(TypedDict):
    """A table of a method's artefact hook; `needs`: options without which there is none."""

    description: str
    needs: NotRequired[dict[str, Any]]


@with_config(STRICT)
class Look(TypedDict, total=False):
    """How figures show a method, in matplotlib's terms."""

    colour: Annotated[str, Field(pattern="^#[0-9A-Fa-f]{6}$")]
    marker: Literal["o", "s", "^", "D", "v", "P", "X", "*"]


@with_config(STRICT)
class Cost(TypedDict, total=False):
    """What memory and time of a job follow from, beside images, backbone and clients."""

    trains_weights: str
    """The option that says by a regular expression which of the backbone's own weights a client
    trains; empty: all, prompts or head: none."""
    keeps_weights: bool
    """True if clients keep them from round to round."""
    personalize_epochs: str | int
    """Epochs, of all clients, that the hook personalize takes before an evaluation, or the option
    that holds their number."""
    no_server_model: Condition
    """Where `predict` returns None for the server's model; in a global test, every client's model
    then answers all test images."""


@with_config(STRICT)
class Aggregation(TypedDict, total=False):
    """With which options a server takes which mean of the clients' updates."""

    plain: Condition
    weighted: Condition


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=STRICT)
class Plugin(Located):
    """A method or a wrapper: the keys of its method.toml, and where it lies.

    A condition is true, or the values of options with which something holds.
    """

    kind: Literal["method", "wrapper"]
    """A wrapper changes what a method's hooks give (privacy, compression, ...)."""
    title: str
    """Its name in tables and figures."""
    paper: Paper
    family: Literal["vit", "clip"] | None = None
    """The kind of backbone that a method trains on."""
    extra_families: Several[Literal["resnet"]] = ()
    """Other kinds of backbone that it trains on without a change."""
    needs: Several[Literal["features", "patches", "prototypes"]] = ()
    """Features: final class token of every image, or its CLIP features (batch.features); patches:
    projected patch tokens of every image, of a CLIP alone (batch.patches); prototypes: the warm
    start of Eq. 18-19 of PEP-FedPT (task.prototypes)."""
    forward_inputs: Several[Literal["images", "texts"]] = ()
    """What it runs through the backbone in a training step; by default images, and with a CLIP
    texts. [] if it reads caches alone. How many clients train, and how many images are evaluated,
    at once follows from it."""
    artefacts: dict[Name, Artefact] = Field(default_factory=dict)
    """Named tables that its artefact hook gives."""
    trains: str = ""
    """What clients train, as "prompts + head", which tables say where it is not the same for all
    methods; known without it where cost.trains_weights names an option."""
    trained: bool = True
    """False if there is nothing to train, and the rounds change nothing."""
    stacked: bool = True
    """False if its clients cannot train as one batch; the docstring says why."""
    couples_images: Condition = False
    """Where the loss of an image depends on the other images of its batch; training.micro_batch is
    refused then."""
    whole_cohorts: Condition = False
    """Where the update of a client depends on the other clients of its round: they train as one
    cohort, however large, and study.stacked: false is refused."""
    aggregation: Literal["plain", "weighted"] | Aggregation | None = None
    """The mean of the clients' updates that the server takes: "plain", of all clients alike,
    "weighted", by their training images, or the options with which it is which. The default hook
    `aggregate` takes it. A method with an `aggregate` of its own names it if it uses nothing else
    of the updates; without it, wrappers that preserve the sum of the updates alone are refused."""
    server_sees_held_out: bool = False
    """True if the server trains on images of held-out clients, to which it is then no stranger:
    tables mark its held-out accuracies."""
    preserves: Literal["sum"] | None = None
    """Sum, if a wrapper changes the updates such that only their sum stays as it was, up to
    rounding (secure masks); the method and the other wrappers must be content with that
    (aggregation, updates), and `fedloom check` compares within a wider tolerance."""
    updates: Literal["unread", "dropped", "read"] = "read"
    """What a wrapper does with the clients' updates: it leaves them unread; it may drop some,
    whatever they hold, and must then stand after a wrapper that preserves the sum alone; or it
    reads or changes them, and cannot be used with such a wrapper."""
    cost: Cost = Field(default_factory=Cost)
    """What memory and time of a job follow from, beside images, backbone and clients."""
    look: Look = Field(default_factory=Look)
    """The colour and marker that the method asks for in figures; another row of a figure that asks
    for the same gets others."""
    training_defaults: dict[str, Any] = Field(default_factory=dict, alias="training")
    """The paper's values of the core options of config.yaml, all of them."""
    option_schemas: dict[str, Any] = Field(default_factory=dict, alias="options")
    """A JSON Schema of every option, with type, default and description."""

    @property
    def families(self) -> tuple[str, ...]:
        """All kinds of backbone that a method trains on."""
        return (*([self.family] if self.family else []), *self.extra_families)

    @property
    def features_only(self) -> bool:
        """True if the method never reads pixels or patches, only cached features."""
        return "images" not in self.forward_inputs and "patches" not in self.needs

    def needs_whole_cohorts(self, options: dict) -> bool:
        """Return True if, with these options, all clients of a round must train as one cohort."""
        return _holds(self.whole_cohorts, options)

    def artefacts_with(self, options: dict) -> list[str]:
        """Return the tables that the artefact hook gives with these options, all filled in."""
        entries = self.artefacts.items()
        return [name for name, entry in entries if _holds(entry.get("needs", True), options)]

    def refused_parts(self, options: dict, micro_batch: int | None, stacked: bool) -> str | None:
        """Return why a study may not divide the method's batches or cohorts as it wants to.

        Args:
            options: all of them, filled in.
            micro_batch, stacked: the study's training.micro_batch and study.stacked.

        Returns:
            A line that says what to change; None if the method allows it.
        """
        if micro_batch is not None and _holds(self.couples_images, options):
            return (
                "with these options the loss of an image depends on the other images of its batch; "
                "set training.micro_batch: null"
            )
        if not stacked and self.needs_whole_cohorts(options):
            return (
                "with these options a client's update depends on the other clients of its round; "
                "set study.stacked: true"
            )
        return None

    def aggregation_with(self, options: dict) -> str | None:
        """Return the mean of the updates that the server takes, "plain" or "weighted".

        Args:
            options: all of them, filled in.

        Returns:
            None if the server uses each update by itself.
        """
        if not isinstance(self.aggregation, dict):
            return self.aggregation
        for kind in ("plain", "weighted"):
            if _holds(self.aggregation.get(kind, False), options):
                return kind
        return None

    def trains_weights(self, options: dict) -> bool:
        """Return True if clients may train all of the backbone's weights, with these options."""
        pattern = self.cost.get("trains_weights")
        return pattern is not None and options[pattern] not in NO_WEIGHTS

    def trained_part(self, options: dict) -> str:
        """Return what clients train with these options, in a table's words; "" if unknown."""
        pattern = self.cost.get("trains_weights")
        if pattern is None:
            return self.trains if self.trained else "nothing"
        return PARTS.get(options[pattern], "some weights + head")

    def has_server_model(self, options: dict) -> bool:
        """Return True if `predict` answers for the server's model, with these options."""
        return not _holds(self.cost.get("no_server_model", False), options)

    def training(self, *overrides: dict) -> dict:
        """Return the paper's training options, overridden in turn."""
        merged = DEFAULTS | self.training_defaults
        for override in overrides:
            merged |= override
        return merged

    def options(self, given: dict, where: str) -> dict:
        """Check the given options and fill in the defaults of the others.

        Raises:
            FedLoomError: unknown option, wrong type or out of bounds; names `where`.
        """
        return fill_in(given, self.option_schemas, where)

    def with_defaults(self, values: dict) -> "Plugin":
        """Return the plugin with other defaults of some of its options."""
        changed = {name: self.option_schemas[name] | {"default": v} for name, v in values.items()}
        return replace(self, option_schemas=self.option_schemas | changed)


def _holds(condition: Condition, options: dict) -> bool:
    """Return a plain condition, or whether the options have the values that it names."""
    return condition if isinstance(condition, bool) else condition.items() <= options.items()


def _read(folder: Path, module: str | None = None) -> Plugin:
    """Read and check the method.toml of a folder."""
    file = folder / "method.toml"
    content = read_toml(file)
    family = str(content.get("family"))
    try:
        _check_keys(content)
        inputs = {"forward_inputs": FORWARD_INPUTS.get(family, ())}
        plugin = Plugin(**inputs | content, folder=folder, module=module)
        _check(plugin)
    except ValidationError as error:
        raise FedLoomError(f"{file}: {_first_problem(error)}") from None
    except FedLoomError as error:
        raise FedLoomError(f"{file}: {error}") from None
    schema.checked(Training, plugin.training_defaults, f"{file}: training")
    return plugin


def _first_problem(error: ValidationError) -> str:
    """Return what pydantic refuses first of a method.toml, as "key: must be ..., got ..."."""
    problem = error.errors(include_url=False)[0]
    path = [step for step in problem["loc"] if step not in ("[key]", "dict[str,any]", "bool")]
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]
    if problem["type"] == "missing":
        return f"{where}: is missing"
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key"
    message = problem["msg"].replace("Input should be", "must be", 1)
    return shortened(f"{where}: {message}, got {problem['input']!r}")


def _check_keys(content: dict[str, Any]) -> None:
    """Check that a method.toml has only keys that there are, and that its kind declares.

    Raises:
        FedLoomError: begins with the key.
    """
    names = {field.name for field in fields(Plugin)} - {"folder", "module"}
    known = [ALIASES.get(name, name) for name in names]
    kind = content.get("kind")
    for key in content:
        if key not in known:
            raise FedLoomError(f"{key}: unknown key; {suggestion(key, known)}")
        if kind == "method" and key in OF_WRAPPERS:
            raise FedLoomError(f"{key}: only a wrapper declares it; remove it")
        if kind == "wrapper" and key not in OF_WRAPPERS + OF_BOTH:
            raise FedLoomError(f"{key}: only a method declares it; remove it")


def _check(plugin: Plugin) -> None:
    """Check what the keys of a method.toml say together.

    Raises:
        FedLoomError: begins with the key.
    """
    is_method, options = plugin.kind == "method", plugin.option_schemas
    if is_method and plugin.family is None:
        raise FedLoomError('family: is missing; a method needs "vit" or "clip"')
    available = NEEDS.get(plugin.family or "", ())
    for number, entry in enumerate(plugin.needs):
        if entry not in available:
            names = " or ".join(repr(name) for name in available)
            raise FedLoomError(f"needs[{number}]: must be {names}, got {entry!r}")
    for key in OF_THE_PAPER if is_method and plugin.trained else ():
        if key not in plugin.training_defaults:
            raise FedLoomError(f"training.{key}: is missing")
    named: dict[str, Any] = {
        f"artefacts.{name}.needs": entry.get("needs") for name, entry in plugin.artefacts.items()
    }
    named |= {key: getattr(plugin, key) for key in ("couples_images", "whole_cohorts")}
    if isinstance(plugin.aggregation, dict):
        named |= {f"aggregation.{kind}": held for kind, held in plugin.aggregation.items()}
    for key, value in plugin.cost.items():
        named[f"cost.{key}"] = [value] if isinstance(value, str) else value
    for key, value in named.items():
        for option in value if isinstance(value, dict | list) else ():
            if option not in options:
                raise FedLoomError(f"{key}: no option '{option}'; {suggestion(option, [*options])}")
    check_schemas(options, "options", required=("default",))


def read_toml(file: Path) -> dict:
    """Return the content of a plugin's TOML file, and require a plugin.py beside it.

    Raises:
        FedLoomError: one of them is missing, the first is no TOML, or the folder has two of FILES.
    """
    others = [name for name in FILES if (file.parent / name).exists() and name != file.name]
    if others:
        raise FedLoomError(f"{file.parent}: {file.name} and {others[0]}; a plugin is of one kind")
    for needed in (file, file.parent / "plugin.py"):
        if not needed.is_file():
            raise FedLoomError(f"{file.parent}: a {file.stem} needs the file {needed.name}")
    try:
        return tomllib.loads(read_text(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FedLoomError(f"{file}: {error}") from None


def _places(kind: str, folder: Path) -> Iterator[tuple[str, Callable[[], Place]]]:
    """Yield the name of every plugin's folder or entry point, and what finds its place.

    A folder without a file of `FILES` is taken for a method, which then misses its method.toml.
    """
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name[0] not in "_.":
            files = [name for name in FILES if (path / name).exists()]
            if f"{kind}.toml" in (files or FILES[:1]):
                yield path.name, lambda path=path: (path, None)
    for entry in entry_points(group=f"fedloom.{kind}s"):
        yield entry.name, partial(_installed, entry)


def _installed(entry: EntryPoint) -> Place:
    """Locate an installed plugin without importing what lies in its folder.

    Raises:
        FedLoomError: there is no such module, or a package above it cannot be imported.
    """
    where = f"entry point {entry.group}:{entry.name}"
    try:
        spec = importlib.util.find_spec(entry.module)
    except (Exception, SystemExit) as error:
        raise FedLoomError(f"{where}: {entry.value}: {in_words(error)}") from error
    if spec is None or spec.origin is None:
        raise FedLoomError(f"{where}: no module {entry.value}")
    package = entry.module if spec.submodule_search_locations else entry.module.rpartition(".")[0]
    return Path(spec.origin).parent, package


LocatedPlugin = TypeVar("LocatedPlugin", bound=Located)


def gather(
    kind: str, folder: Path, read: Callable[[Path, str | None], LocatedPlugin]
) -> Found[LocatedPlugin]:
    """Return the plugins of a kind: those of `folder` and installed ones.

    Args:
        kind: method (wrappers included), source or scheme.
        read: makes a plugin of its place, or says in a FedLoomError why it cannot.
    """
    found: Found[LocatedPlugin] = Found()
    for name, place in _places(kind, folder):
        path = None
        try:
            path, module = place()
            plugin = read(path, module)
        except FedLoomError as error:
            if path and kind == "method":  # FedLoom has sources and schemes of its own, whose name
                name = _name_in(path / "method.toml") or name  # a broken plugin must not take
            found.broken[name] = error
            continue
        other = found.setdefault(plugin.name, plugin).folder
        if other != path:
            line = f"is defined twice: in {other} and in {path}; rename one"
            found.broken[plugin.name] = FedLoomError(f"{kind} '{plugin.name}' {line}")
    for name in found.keys() & found.broken.keys():
        del found[name]
    return found


def _name_in(file: Path) -> str | None:
    """Return the name that a TOML file gives, broken as it may be; None if it gives none."""
    try:
        match = re.search(r'^name *= *"(\w+)"', read_text(file), re.MULTILINE)
    except FedLoomError:
        return None
    return match[1] if match else None


@cache
def discover(folder: Path = ROOT / "plugins") -> Found[Plugin]:
    """Return all methods and wrappers: those of `folder` and installed ones.

    Read once per process.
    """
    return gather("method", folder, _read)


def find(name: str, where: str = "method", kind: str | None = None) -> Plugin:
    """Return the plugin of that name, and of that kind if it is given.

    Raises:
        FedLoomError: it is broken, or there is none; suggests the nearest.
    """
    plugins = discover()
    known = [k for k, plugin in plugins.items() if kind in (None, plugin.kind)]
    if name not in known and name not in plugins.broken:
        hint = suggestion(name, known)
        raise FedLoomError(f"{where}: no {kind or 'method'} '{name}'; {hint}")
    return plugins[name]
