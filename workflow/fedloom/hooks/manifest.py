"""What plugins say of themselves in method.toml, read without importing them.

A plugin is a folder with `method.toml` and `plugin.py`, and more modules if it likes: in `plugins/`
of the checkout, or in an installed package that declares an entry point of the group
`fedloom.methods`. A source or a scheme has `source.toml` or `scheme.toml` in its place, and the
group `fedloom.sources` or `fedloom.schemes` (see fedloom.config.data_plugins).
"""

import importlib.util
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from fedloom.common import schema
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, in_words
from fedloom.common.folders import read_text

TRAINING = {  # what neither method.toml nor the study says, as torch has it
    "decay": 1.0,
    "momentum": 0.0,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.0,
    "clip": None,
    "augment": False,
    "drop_last": False,
    "micro_batch": None,
    "local_steps": None,
}


ENCODED = {"vit": ("images",), "clip": ("images", "texts")}  # by a method that does not say
PACKAGE = "fedloom_plugins"  # the package that stands for plugins/ of the checkout
NO_WEIGHTS = ("prompts", "head")  # an option `train` that names no weights of the backbone
PARTS = {"": "whole model", "prompts": "prompts + head", "head": "head"}  # by an option `train`
FILES = ("method.toml", "source.toml", "scheme.toml")  # a plugin's folder has one of them

Item = TypeVar("Item")
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

    name: str
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


@dataclass(frozen=True)
class Plugin(Located):
    """A method or a wrapper, as its method.toml describes it.

    Attributes:
        kind: method or wrapper.
        family: the kind of backbone that a method trains on, vit or clip.
        also_on: other kinds that it trains on as they are.
        needs: the caches that a method reads: features, patches, prototypes.
        encodes: what it runs through the backbone in a training step: images, texts.
        artefacts: description of each table that its artefact hook gives, and the options
            without which there is none.
        trains: what clients train, in a table's words; "" if method.toml does not say.
        server_sees_held_out: the server trains on images of held-out clients.
        trained: False if there is nothing to train.
        stacked: False if its clients cannot train as one batch.
        whole_batches: True, or values of options, where the loss of an image depends on the other
            images of its batch.
        whole_cohorts: True, or values of options, where the update of a client depends on the
            other clients of its round.
        uses_sum: True, or values of options, by the only sum of the updates that the method's
            server uses: "plain", of all clients alike, or "weighted", by their training images.
        exact_in: of a wrapper: "sum" if it changes each update such that their sum alone is as it
            was, up to rounding; else "each".
        updates: what a wrapper does with the updates: it leaves them "unread", some may be
            "dropped", or they are "read" or changed.
        cost: what memory and time of a job follow from, see method.schema.yaml.
        paper: citation, link and equations.
        training_defaults: the paper's values of the core training options.
        option_schemas: a JSON Schema per option.
        look: colour and marker in figures, where method.toml gives them.
    """

    kind: str
    title: str
    family: str | None
    also_on: tuple[str, ...]
    needs: tuple[str, ...]
    encodes: tuple[str, ...]
    artefacts: dict[str, dict]
    trains: str
    server_sees_held_out: bool
    trained: bool
    stacked: bool
    whole_batches: bool | dict
    whole_cohorts: bool | dict
    uses_sum: dict[str, bool | dict]
    exact_in: str
    updates: str
    cost: dict
    paper: dict
    training_defaults: dict
    option_schemas: dict[str, dict]
    look: dict

    @property
    def families(self) -> tuple[str, ...]:
        """All kinds of backbone that a method trains on."""
        return (*([self.family] if self.family else []), *self.also_on)

    @property
    def features_only(self) -> bool:
        """True if the method never reads pixels or patches, only cached features."""
        return "images" not in self.encodes and "patches" not in self.needs

    def needs_whole_cohorts(self, options: dict) -> bool:
        """Return True if, with these options, all clients of a round must train as one cohort."""
        return _holds(self.whole_cohorts, options)

    def artefacts_with(self, options: dict) -> list[str]:
        """Return the tables that the artefact hook gives with these options, all filled in."""
        return [
            name
            for name, entry in self.artefacts.items()
            if entry.get("needs", {}).items() <= options.items()
        ]

    def refused_parts(self, options: dict, micro_batch: int | None, stacked: bool) -> str | None:
        """Return why a study may not divide the method's batches or cohorts as it wants to.

        Args:
            options: all of them, filled in.
            micro_batch, stacked: the study's training.micro_batch and study.stacked.

        Returns:
            A line that says what to change; None if the method allows it.
        """
        if micro_batch is not None and _holds(self.whole_batches, options):
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

    def sum_of_updates(self, options: dict) -> str | None:
        """Return the only sum of the updates that the server uses: "plain" or "weighted".

        Args:
            options: all of them, filled in.

        Returns:
            None if the server uses each update by itself.
        """
        return next((k for k, held in self.uses_sum.items() if _holds(held, options)), None)

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
        merged = TRAINING | self.training_defaults
        for override in overrides:
            merged |= override
        return merged

    def options(self, given: dict, where: str) -> dict:
        """Check the given options and fill in the defaults of the others.

        Raises:
            FedLoomError: unknown option, wrong type or out of bounds; names `where`.
        """
        properties = {
            name: option | {"default": None} for name, option in self.option_schemas.items()
        }
        shape = {"type": "object", "additionalProperties": False, "properties": properties}
        schema.check(given, shape, where)
        return {name: option["default"] for name, option in self.option_schemas.items()} | given


def _holds(condition: bool | dict, options: dict) -> bool:
    """Return a plain condition, or whether the options have the values that it names."""
    return condition if isinstance(condition, bool) else condition.items() <= options.items()


def _read(folder: Path, module: str | None = None) -> Plugin:
    """Read and check the method.toml of a folder."""
    file = folder / "method.toml"
    content = read_toml(file)
    root = schema.load("method")
    schema.check(content, root, f"{file}: ")
    content = schema.filled(content, root, root)
    training = schema.load("config")["$defs"]["training"]
    schema.check(content.get("training", {}), training, f"{file}: training")
    options = content["options"]
    cost = content.get("cost", {})
    for option in (cost.get("trains_weights"), cost.get("personalize_epochs")):
        if isinstance(option, str) and option not in options:
            hint = schema.suggestion(option, list(options))
            raise FedLoomError(f"{file}: cost: no option '{option}'; {hint}")
    conditions = {f"artefacts.{k}.needs": v.get("needs") for k, v in content["artefacts"].items()}
    conditions |= {key: content[key] for key in ("whole_batches", "whole_cohorts")}
    conditions |= {f"uses_sum.{name}": held for name, held in content["uses_sum"].items()}
    conditions["cost.no_server_model"] = cost.get("no_server_model")
    for key, condition in conditions.items():
        for option in condition if isinstance(condition, dict) else ():
            if option not in options:
                hint = schema.suggestion(option, list(options))
                raise FedLoomError(f"{file}: {key}: no option '{option}'; {hint}")
    check_options(file, options)
    return Plugin(
        name=content["name"],
        kind=content["kind"],
        title=content["title"],
        folder=folder,
        module=module,
        family=content.get("family"),
        also_on=tuple(content["also_on"]),
        needs=tuple(content["needs"]),
        encodes=tuple(content.get("encodes", ENCODED.get(content.get("family") or "", ()))),
        artefacts=content["artefacts"],
        trains=content.get("trains", ""),
        server_sees_held_out=content["server_sees_held_out"],
        trained=content["trained"],
        stacked=content["stacked"],
        whole_batches=content["whole_batches"],
        whole_cohorts=content["whole_cohorts"],
        uses_sum=content["uses_sum"],
        exact_in=content["exact_in"],
        updates=content["updates"],
        cost=content.get("cost", {}),
        paper=content["paper"],
        training_defaults=content.get("training", {}),
        option_schemas=options,
        look=content.get("look", {}),
    )


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


def check_options(file: Path, options: dict[str, dict]) -> None:
    """Check the schemas of a plugin's options, and their defaults by them.

    Raises:
        FedLoomError: names the file and the option.
    """
    for name, option in options.items():
        schema.check(option, schema.load("option"), f"{file}: options.{name}")
        if "default" in option:
            schema.check(option["default"], option, f"{file}: default of options.{name}")


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
        try:
            path, module = place()
            plugin = read(path, module)
        except FedLoomError as error:
            found.broken[name] = error
            continue
        other = found.setdefault(plugin.name, plugin).folder
        if other != path:
            line = f"is defined twice: in {other} and in {path}; rename one"
            found.broken[plugin.name] = FedLoomError(f"{kind} '{plugin.name}' {line}")
    for name in found.keys() & found.broken.keys():
        del found[name]
    return found


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
        hint = schema.suggestion(name, known)
        raise FedLoomError(f"{where}: no {kind or 'method'} '{name}'; {hint}")
    return plugins[name]
