"""The declarations of plugins in method.toml, read without importing the plugins.

A plugin is a folder with `method.toml`, `plugin.py` and any further modules. It ships with FedLoom,
lies in `plugins/` of the current folder, or is an installed package with an entry point of the
group `fedloom.methods`. A source, scheme, table or figure has `source.toml`, `fedloom.sources` and
so on instead (see fedloom.config.kinds).
"""

from collections.abc import Sequence
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import Field

from fedloom.common.key_path import KeyPath
from fedloom.common.renamed import renamed
from fedloom.common.schema import Identifier, Keys
from fedloom.hooks.discovery import PluginCatalogue, PluginManifest, discover_plugins
from fedloom.hooks.options import check_schemas, fill_in
from fedloom.hooks.training_options import DEFAULTS, REQUIRED_IN_METHOD_TOML, Training
from fedloom.machine.install import plugin_folders

# by default, by family; None of a wrapper
FORWARD_INPUTS = {"vit": ("images",), "clip": ("images", "texts"), None: ()}
CACHES_OF_FAMILY = {"vit": ("features", "prototypes"), "clip": ("features", "patches"), None: ()}
# keys of no method
OF_WRAPPERS = {"preserves", "updates", "rejects_non_finite"}
# keys that hold a condition, see `Plugin`
CONDITIONS = ("couples_images", "whole_cohorts", "unseen_classes")
# what clients train, in a table's words, by the value of an option as `train`
TRAINED_PARTS = {"": "whole model", "prompts": "prompts + head", "head": "head"}
# begins an error about the name of a method that no key of a file gave
METHOD = KeyPath("method")
# the artefact of answers to images that no client trains on
TEST_SETS = "test_sets"

Item = TypeVar("Item")
Condition = bool | dict[str, Any]
# not strict, since TOML has lists and no tuples
Items: TypeAlias = Annotated[tuple[Item, ...], Field(strict=False)]


class Paper(Keys):
    """Where a method was published."""

    citation: str
    """Authors, title, place and year of the publication."""
    link: str | None = None
    """DOI, arXiv number or web address of the paper."""
    equations: str | None = None
    """Equations and algorithms of the paper that the plugin computes."""


class Artefact(Keys):
    """A table that a method's hook `artefact`, or a wrapper's hook `audit_table`, returns."""

    description: str
    """What the table holds."""
    options: dict[str, Any] = Field({})
    """Values of options with which the hook returns the table. Default: any values."""


class Look(Keys):
    """How figures show a method, in matplotlib's terms."""

    colour: Annotated[str, Field(pattern="^#[0-9A-Fa-f]{6}$")] | None = None
    """Colour, as #RRGGBB."""
    marker: Literal["o", "s", "^", "D", "v", "P", "X", "*"] | None = None
    """Marker, as matplotlib writes it."""


class Cost(Keys):
    """Facts from which memory and time of a job are estimated, beside images, backbone and
    clients.
    """

    prompts: Items[Identifier | int] = ()
    """Number of prompts in a block of a ViT: a list of numbers, and of options that hold numbers,
    which are added. Where `trains_weights` names an option, they count only if it is `prompts`."""
    trains_weights: str | None = None
    """Name of the option with a regular expression for the backbone's weights that a client trains.
    If the option is empty, it trains all; if it is `prompts` or `head`, none."""
    keeps_weights: bool = False
    """True if clients keep these weights from round to round."""
    passes: str | int = 1
    """How often a step encodes its images and the texts of all classes: a number, or the option
    that holds it. `image`: texts are encoded once for every image."""
    personalize_epochs: str | int = 0
    """Number of epochs of the hook `personalize` before an evaluation, or the option that holds
    it."""
    no_server_model: Condition = False
    """Condition with which `predict` returns None for the server's model. Every client then
    predicts the global test images in its place."""


Mean = Literal["plain", "weighted"]


class Plugin(PluginManifest):
    """A method or a wrapper.

    A condition is true, or the values of options with which something holds.
    """

    kind: Literal["method", "wrapper"]
    """`method`, or `wrapper`: it changes what a method's hooks return (privacy, compression,
    ...)."""
    title: str
    """Name in tables and figures."""
    paper: Paper
    family: Literal["vit", "clip"] | None = None
    """Kind of backbone that a method trains on. Methods must set it."""
    extra_families: Items[Literal["resnet"]] = ()
    """Other kinds of backbone that the method trains on without a change."""
    needs: Items[Literal["features", "patches", "prototypes"]] = ()
    """What is computed before the runs. `features`: the final class token of every image, or its
    CLIP features (batch.features). `patches`: projected patch tokens, for CLIP only
    (batch.patches). `prototypes`: the warm start of Eq. 18-19 of PEP-FedPT, for a ViT only
    (task.prototypes)."""
    forward_inputs: Items[Literal["images", "texts"]] = Field(
        default_factory=lambda keys: FORWARD_INPUTS[keys.get("family")]
    )
    """What the method runs through the backbone in a training step, from which the sizes of batches
    follow. Default: images, and with CLIP also texts. [] if it only reads caches."""
    artefacts: dict[Identifier, Artefact] = Field({})
    """Tables that the hook `artefact`, or the hook `audit_table` of a wrapper, returns, by their
    names."""
    trains: str = ""
    """The part of the model that clients train, such as "prompts + head", for tables of methods
    that train different parts. It may be left out where `cost.trains_weights` names an option."""
    trained: bool = True
    """False if there is nothing to train, so that rounds change nothing."""
    stacked: bool = True
    """False if clients cannot train as one batch; the docstring of plugin.py says why."""
    uses_rounds: bool = False
    """True if the method reads `task.training.rounds`: runs with it cannot be extended by
    rounds."""
    couples_images: Condition = False
    """Condition with which the loss of an image depends on the other images of its batch.
    `training.micro_batch` is then refused."""
    whole_cohorts: Condition = False
    """Condition with which a client's update depends on the other clients of its round. They then
    train as one cohort of any size, and `study.stacked: false` is refused."""
    aggregation: Mean | dict[Mean, Condition] | None = None
    """Mean of the clients' updates that the server, and the default hook `aggregate`, takes:
    "plain", with equal weights; "weighted", by their numbers of training images; or a mapping from
    each of the two to its condition. Leave it out if the hook `aggregate` uses anything else of the
    updates; wrappers that preserve only the sum of the updates are then refused."""
    unseen_classes: Condition = False
    """Condition with which `predict` answers among the classes of `task.data.classes` by their
    names, also classes that no client trained on (`novel_classes` of a partition)."""
    server_sees_held_out: bool = False
    """True if the server trains on images of held-out clients. Tables mark these accuracies."""
    preserves: Literal["sum"] | None = None
    """`sum` if a wrapper changes the updates so that only their sum stays the same, up to rounding
    (secure masks). The method and the other wrappers must need no more than that sum
    (`aggregation`, `updates`), and `fedloom check` compares within a wider tolerance."""
    updates: Literal["unread", "dropped", "read"] = "read"
    """What a wrapper does with the clients' updates. `unread`: nothing. `dropped`: it drops some,
    whatever they hold; it must then come after a wrapper that preserves only the sum. `read`: it
    reads or changes them, which excludes such a wrapper."""
    rejects_non_finite: bool = False
    """True if a wrapper's hook `receive` leaves out updates with NaN or infinity, which are then
    passed to it. Without such a wrapper they end the run."""
    cost: Cost = Cost()
    """Facts from which memory and time of a job are estimated, beside images, backbone and
    clients."""
    look: Look = Look()
    """Colour and marker in figures. A second method in a figure that asks for the same gets
    others."""
    training_defaults: Training = Field(Training(), alias="training")
    """The paper's values of all training options of config.yaml."""
    option_schemas: dict[str, Any] = Field({}, alias="options")
    """JSON Schema of every option, with type, default and description."""

    def check(self, where: KeyPath) -> None:
        """Check what the keys say together; `where` is the path to the file's top level."""
        # keys that belong to methods, and to wrappers
        is_method = self.kind == "method"
        if is_method and self.family is None:
            raise (where / "family").error('is missing; a method needs "vit" or "clip"')
        if is_method:
            for key in OF_WRAPPERS & self.model_fields_set:
                raise (where / key).error("is a key of wrappers alone; remove it")

        # caches that the kind of backbone has
        for entry in self.needs:
            if entry not in CACHES_OF_FAMILY[self.family]:
                holder = self.family or self.kind
                raise (where / "needs").error(f"a {holder} has no {entry}; remove it")

        # the paper's training, if the method trains
        if is_method and self.trained:
            for key in REQUIRED_IN_METHOD_TOML:
                if key not in self.training_defaults.model_fields_set:
                    raise (where / "training" / key).error("is missing")

        # every option that a key names must exist
        named = {key: getattr(self, key) for key in CONDITIONS}
        named |= {f"cost.{key}": value for key, value in self.cost if value != "image"}
        named |= {f"artefacts.{k}.options": entry.options for k, entry in self.artefacts.items()}
        if isinstance(self.aggregation, dict):
            named |= {f"aggregation.{kind}": value for kind, value in self.aggregation.items()}
        for key, value in named.items():
            for option in _names_in(value):
                (where / key).check_known(option, self.option_schemas, "no option")

        check_schemas(self.option_schemas, where / "options", required=("default",))

    @property
    def families(self) -> tuple[str, ...]:
        """All kinds of backbone that a method trains on."""
        return tuple(filter(None, (self.family, *self.extra_families)))

    @property
    def features_only(self) -> bool:
        """True if the method never reads pixels or patches, only cached features."""
        return "images" not in self.forward_inputs and "patches" not in self.needs

    # `options` below are always complete, defaults filled in

    def needs_whole_cohorts(self, options: dict) -> bool:
        """Return True if all clients of a round must train as one cohort."""
        return _holds(self.whole_cohorts, options)

    def artefacts_with(self, options: dict) -> list[str]:
        """Return the tables that the artefact hook gives."""
        return [name for name, entry in self.artefacts.items() if _holds(entry.options, options)]

    def all_artefacts(self, options: dict) -> tuple[str, ...]:
        """Return the tables that a run has: those of the hook, and the runtime's own."""
        tables = self.artefacts_with(options)
        if _holds(self.unseen_classes, options):
            tables.append(TEST_SETS)
        return tuple(tables)

    def why_unseen_classes_unsupported(self, options: dict) -> str | None:
        """Return why clients cannot be tested on classes that none trained on; None if they can."""
        if _holds(self.unseen_classes, options):
            return None
        if self.family == "clip":
            return f"{self.name} does not declare that it predicts among others (unseen_classes)"
        return f"the head of {self.name} has an output for each class that it was trained on alone"

    def refused_parts(self, options: dict, micro_batch: int | None, stacked: bool) -> str | None:
        """Return why a study may not divide the method's batches or cohorts, and what to change."""
        line = "with these options {} depends on the other {}; set {}"
        if micro_batch is not None and _holds(self.couples_images, options):
            loss = "the loss of an image", "images of its batch", "training.micro_batch: null"
            return line.format(*loss)
        if not stacked and self.needs_whole_cohorts(options):
            return line.format("a client's update", "clients of its round", "study.stacked: true")
        return None

    def aggregation_with(self, options: dict) -> str | None:
        """Return the mean of the updates that the server takes; None if it uses each update."""
        if not isinstance(self.aggregation, dict):
            return self.aggregation
        holds = [kind for kind, condition in self.aggregation.items() if _holds(condition, options)]
        # where the conditions of both hold, plain comes first
        if "plain" in holds:
            return "plain"
        return next(iter(holds), None)

    def refused_wrappers(self, options: dict, wrappers: "Sequence[Plugin]") -> str | None:
        """Return why the method cannot have these wrappers in this order, and what to change.

        The innermost comes first. One that preserves the sum of the updates alone hands on updates
        that mean nothing by themselves. So the method must use their mean alone, no other wrapper
        may read or change an update, and one that drops some must come after it: on the server the
        last wrapper comes first, and drops them before their sum is restored.
        """
        for position, mask in enumerate(wrappers):
            if mask.preserves is None:
                continue

            # the method must use the mean of the updates alone
            line = f"{mask.name} preserves the sum of the updates alone, "
            if self.aggregation_with(options) is None:
                return (
                    f"{line}but with these options {self.name} declares no aggregation in its "
                    f"method.toml: it may use each update; remove {mask.name}"
                )

            # no other wrapper may read or change an update, or drop one too early
            for other in (*wrappers[:position], *wrappers[position + 1 :]):
                if other.updates == "read":
                    return f"{line}and {other.name} reads or changes each; remove one of the two"
            for other in wrappers[:position]:
                if other.updates == "dropped":
                    line += (
                        f"and {other.name}, which comes before it, drops some of them afterwards"
                    )
                    return f"{line}; list {mask.name} before {other.name}"
        return None

    def trains_weights(self, options: dict) -> bool:
        """Return True if clients may train all of the backbone's weights."""
        pattern = self.cost.trains_weights
        return pattern is not None and options[pattern] not in ("prompts", "head")

    def prompts_of_a_block(self, options: dict) -> int:
        """Return how many prompts a block of a ViT has beside an image's tokens."""
        pattern = self.cost.trains_weights
        if pattern is not None and options[pattern] != "prompts":
            return 0

        # numbers, and options that hold numbers
        count = 0
        for entry in self.cost.prompts:
            if isinstance(entry, str):
                count += options[entry]
            else:
                count += entry
        return count

    def passes(self, options: dict) -> int | str:
        """Return how often a step encodes images and texts; "image": texts once for every image."""
        return options.get(self.cost.passes, self.cost.passes)

    def trained_part(self, options: dict) -> str:
        """Return what clients train, in a table's words; "" if unknown."""
        pattern = self.cost.trains_weights
        if pattern is None and not self.trained:
            return "nothing"
        if pattern is None:
            return self.trains
        return TRAINED_PARTS.get(options[pattern], "some weights + head")

    def has_server_model(self, options: dict) -> bool:
        """Return True if `predict` answers for the server's model."""
        return not _holds(self.cost.no_server_model, options)

    def merge_training(self, *overrides: dict) -> dict:
        """Return the paper's training options, overridden in turn."""
        return reduce(or_, overrides, DEFAULTS | self.training_defaults.given)

    def complete_options(self, given: dict, where: KeyPath | None = None) -> dict:
        """Check the given options, and return them with the defaults of the others.

        `where` is the key path that gave them; by default an error names the plugin.
        """
        if where is None:
            where = KeyPath(f"plugin {self.name}", ("options",))
        return fill_in(given, self.option_schemas, where)

    def with_defaults(self, values: dict) -> Self:
        """Return the plugin with other defaults of some of its options."""
        schemas = dict(self.option_schemas)
        for name, value in values.items():
            schemas[name] = {**schemas[name], "default": value}
        return self.model_copy(update={"option_schemas": schemas})


def _holds(condition: Condition, options: dict) -> bool:
    """Return True if a condition is true, or if the options have the values that it asks for."""
    if isinstance(condition, bool):
        return condition
    return condition.items() <= options.items()


def _names_in(value: Any) -> list[str]:
    """Return the options that the value of a key names: itself, or texts among its entries."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict | list | tuple):
        return [entry for entry in value if isinstance(entry, str)]
    return []


@cache
def discover_methods(folder: Path | None = None) -> PluginCatalogue[Plugin]:
    """Return all methods and wrappers: those of `folder` (default: all folders), installed ones."""
    if folder:
        return discover_plugins("method", [folder], Plugin)
    return discover_plugins("method", plugin_folders(), Plugin)


def find_method(name: str, where: KeyPath = METHOD, kind: str | None = None) -> Plugin:
    """Return the plugin that is named at `where`, of that kind if one is given.

    An unknown name is an error that suggests the nearest one.
    """
    plugins = discover_methods()
    known = [k for k, plugin in plugins.items() if kind in (None, plugin.kind)]
    if name not in plugins.errors:
        where.check_known(name, known, f"no {kind or 'method'}")
    return plugins[name]


# functions by the names that they had before 2026-11-28
RENAMED = {"find": "find_method", "discover": "discover_methods"}

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, RENAMED)
