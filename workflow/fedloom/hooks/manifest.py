"""The declarations of plugins in method.toml, read without importing the plugins.

A plugin is a folder with `method.toml`, `plugin.py` and any further modules. There are three places
for a plugin:

1. FedLoom's own `plugins/`.
2. `plugins/` in the current folder.
3. An installed package with an entry point of the group `fedloom.methods`.

The other kinds of plugins (sources, schemes, backbones, tables and figures) have a file
`source.toml`, and so on, and a group `fedloom.sources`, and so on (see
fedloom.config.kind_plugins).
"""

from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import KeyPath
from fedloom.common.renamed import renamed
from fedloom.common.schema import Identifier
from fedloom.hooks.discovery import PluginCatalogue, PluginManifest, discover_plugins
from fedloom.hooks.manifest_sections import (
    Artefact,
    Condition,
    Cost,
    Items,
    Look,
    Mean,
    Paper,
    holds,
)
from fedloom.hooks.options import check_schemas, fill_in
from fedloom.hooks.training_options import DEFAULTS, REQUIRED_IN_METHOD_TOML, Training
from fedloom.machine.install import plugin_folders

# default of `forward_inputs`, and the caches that exist, by family; a wrapper has the family None
FORWARD_INPUTS = {"vit": ("images",), "clip": ("images", "texts"), None: ()}
CACHES_OF_FAMILY = {"vit": ("features", "prototypes"), "clip": ("features", "patches"), None: ()}
# keys that only a wrapper may have
OF_WRAPPERS = {
    "preserves",
    "updates",
    "rejects_non_finite",
    "adds_offsets_in_training",
    "adds_offsets_at_test",
}
# keys whose value is a condition (see `MethodManifest`)
CONDITIONS = (
    "couples_images",
    "whole_cohorts",
    "unseen_classes",
    "takes_logit_offsets",
    "adds_offsets_in_training",
    "adds_offsets_at_test",
)
# what clients train, as tables call it, if the method trains nothing
NOTHING = "nothing"
# what clients train, as tables call it, by the value of the option that `trains_weights` names
TRAINED_PARTS = {"": "whole model", "prompts": "prompts + head", "head": "head"}
# the beginning of an error about a method's name that does not come from a file
METHOD = KeyPath("method")
# the artefact with the clients' answers on test sets of classes that no client trains on
TEST_SETS = "test_sets"
# the artefact with the clients' answers on a few test images, and the number of these images
ANSWERS = "answers"
EXAMPLES = 9
# the artefacts that FedLoom computes itself, whatever the plugin
OWN_ARTEFACTS = (TEST_SETS, ANSWERS)


class MethodManifest(PluginManifest):
    """A method or a wrapper: the keys of its method.toml.

    Some keys hold a condition. A condition is true, false, or a mapping from options to the values
    that they must have.
    """

    kind: Literal["method", "wrapper"]
    """`method`, or `wrapper`. A wrapper changes what the hooks of a method return (privacy,
    compression, ...)."""
    title: str
    """Name in tables and figures."""
    paper: Paper
    family: Literal["vit", "clip"] | None = None
    """Kind of backbone that a method trains on. Methods must set it."""
    extra_families: Items[Literal["resnet"]] = ()
    """Other kinds of backbone on which the method trains without changes."""
    needs: Items[Literal["features", "patches", "prototypes"]] = ()
    """Caches that the method reads; jobs compute them before the runs. `features`: the final class
    token of every image, or with CLIP the image's feature (batch.features). `patches`: the
    projected patch tokens, only with CLIP (batch.patches). `prototypes`: the warm start of Eq.
    18-19 of PEP-FedPT, only with a ViT (task.prototypes)."""
    forward_inputs: Items[Literal["images", "texts"]] = Field(
        default_factory=lambda keys: FORWARD_INPUTS[keys.get("family")]
    )
    """Inputs that the method runs through the backbone in a training step. They determine the
    number of images and clients that are computed at once. Default: images, and with CLIP also
    texts. [] if the method only reads caches."""
    enters_image_tower: bool = False
    """True if a method on a CLIP puts prompts or functions into the blocks of the image tower,
    trains its weights, or reads the patches before its first block. A backbone whose image tower
    has no transformer blocks is then refused, such as a ResNet or a ConvNeXt."""
    artefacts: dict[Identifier, Artefact] = Field({})
    """Tables by name, which the hook `artefact` of a method, or `audit_table` of a wrapper,
    returns. The names `answers` and `test_sets` are those of FedLoom's own tables."""
    trains: str = ""
    """The part of the model that clients train, such as "prompts + head". Tables show it where
    methods train different parts. It may be left out where `cost.trains_weights` names an
    option."""
    trained: bool = True
    """False if the method has nothing to train: its rounds change nothing."""
    stacked: bool = True
    """False if the clients cannot train as one batch. The docstring of plugin.py then says why."""
    uses_rounds: bool = False
    """True if the method reads `task.training.rounds`. Runs of such a method cannot be extended by
    more rounds."""
    couples_images: Condition = False
    """Condition with which the loss of an image depends on the other images of its batch.
    `training.micro_batch` is then refused."""
    whole_cohorts: Condition = False
    """Condition with which a client's update depends on the other clients of its round. All clients
    of a round then train as one cohort, however many they are, and `study.stacked: false` is
    refused."""
    aggregation: Mean | dict[Mean, Condition] | None = None
    """The mean of the clients' updates that the server takes, which is also the default of the hook
    `aggregate`. "plain": all clients have equal weights. "weighted": the weights are the numbers of
    training images. A mapping gives each of the two a condition. Leave the key out if the hook
    `aggregate` uses more of the updates than their mean. Wrappers that preserve only the sum of the
    updates are then refused."""
    unseen_classes: Condition = False
    """Condition with which `predict` chooses among the names in `task.data.classes`, also if they
    are classes that no client trained on (`novel_classes` of a partition)."""
    other_loss: str = ""
    """Why the training loss that the method reports cannot be compared with that of other methods.
    Figures of the loss say so below their panels."""
    needs_class_token: str = ""
    """What a method does with the class token that it cannot do with pooled patches. ViTs without
    a class token are then refused."""
    takes_logit_offsets: Condition = True
    """Condition with which clients train by `cross_entropy` of the logits of all classes, on their
    own images, and with no class shares of the method's own beside these logits. Otherwise a
    wrapper must not add to the logits in training (hook `training_offsets`)."""
    smoke_options: JsonDict = Field({})
    """Values of options in smoke runs (`fedloom run STUDY --smoke`), in place of the study's. A
    method whose server takes many steps, however small the data are, states fewer of them."""
    server_sees_held_out: bool = False
    """True if the server trains on images of held-out clients. Tables mark the accuracies of such a
    method."""
    preserves: Literal["sum"] | None = None
    """`sum` if a wrapper changes the updates in such a way that only their sum stays the same, up
    to rounding (secure masks). The method and the other wrappers must then need no more than this
    sum (see `aggregation` and `updates`), and `fedloom check` compares with a wider tolerance."""
    updates: Literal["unread", "dropped", "read"] = "read"
    """Says how a wrapper treats the clients' updates. `unread`: it does not look at them.
    `dropped`: it leaves out some of them, without looking at them. It must be listed after a
    wrapper with `preserves = "sum"`. `read`: it reads or changes them. It cannot be combined with
    such a wrapper."""
    rejects_non_finite: bool = False
    """True if the hook `receive` of a wrapper leaves out updates that hold NaN or infinity. Such
    updates then reach that hook. Without such a wrapper they end the run with an error."""
    adds_offsets_in_training: Condition = False
    """Condition with which the hook `training_offsets` of a wrapper returns offsets. The method
    must then take them (`takes_logit_offsets`)."""
    adds_offsets_at_test: Condition = False
    """Condition with which the hook `answer_offsets` of a wrapper returns offsets. They belong to
    the classes that clients train on, so a test on other classes is refused."""
    cost: Cost = Cost()
    """What the method adds to the memory and the time of a job."""
    look: Look = Look()
    """Colour and marker in figures. If two methods of a figure ask for the same look, the second
    one gets another."""
    training_defaults: Training = Field(Training(), alias="training")
    """The paper's values of all training options of config.yaml."""
    option_schemas: JsonDict = Field({}, alias="options")
    """JSON Schema of every option, with type, default and description."""

    def check(self, where: KeyPath) -> None:
        """Check rules between several keys; `where` is the path to the file's top level."""
        # a method needs a family, and must not have a wrapper's keys
        is_method = self.kind == "method"
        if is_method and self.family is None:
            raise (where / "family").error('is missing; a method needs "vit" or "clip"')
        if is_method:
            for key in OF_WRAPPERS & self.model_fields_set:
                raise (where / key).error("is a key of wrappers alone; remove it")

        # caches exist only for some kinds of backbone
        for entry in self.needs:
            if entry not in CACHES_OF_FAMILY[self.family]:
                holder = self.family or self.kind
                raise (where / "needs").error(f"a {holder} has no {entry}; remove it")

        # only a CLIP has an image tower
        if self.enters_image_tower and self.family != "clip":
            raise (where / "enters_image_tower").error(
                "is a key of methods on a CLIP alone; remove it"
            )

        # a CLIP may have any image tower
        if self.needs_class_token and self.family != "vit":
            raise (where / "needs_class_token").error(
                "is a key of methods on a ViT alone; remove it"
            )

        # FedLoom's own table would take the place of the plugin's
        for name in OWN_ARTEFACTS:
            if name in self.artefacts:
                raise (where / "artefacts" / name).error(
                    "must have another name, got that of a table of FedLoom's own; rename it"
                )

        # a method that trains must state the paper's training options
        if is_method and self.trained:
            for key in REQUIRED_IN_METHOD_TOML:
                if key not in self.training_defaults.model_fields_set:
                    raise (where / "training" / key).error("is missing")

        # every option that a key names must exist
        named = {key: getattr(self, key) for key in CONDITIONS}
        named["smoke_options"] = self.smoke_options
        named |= {f"cost.{key}": value for key, value in self.cost if value != "image"}
        named |= {f"artefacts.{k}.options": entry.options for k, entry in self.artefacts.items()}
        if isinstance(self.aggregation, dict):
            named |= {f"aggregation.{mean}": value for mean, value in self.aggregation.items()}
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
        """True if the method reads only cached features, and never pixels or patches."""
        return "images" not in self.forward_inputs and "patches" not in self.needs

    # in all functions below, `options` are complete: missing ones have their defaults

    def needs_whole_cohorts(self, options: dict) -> bool:
        """Return True if all clients of a round must train as one cohort."""
        return holds(self.whole_cohorts, options)

    def artefacts_with(self, options: dict) -> list[str]:
        """Return the names of the tables that the artefact hook returns with these options."""
        return [name for name, entry in self.artefacts.items() if holds(entry.options, options)]

    def all_artefacts(self, options: dict) -> tuple[str, ...]:
        """Return the names of all tables of a run: those of the hook, and the runtime's own."""
        tables = [*self.artefacts_with(options), ANSWERS]
        if holds(self.unseen_classes, options):
            tables.append(TEST_SETS)
        return tuple(tables)

    def why_unseen_classes_unsupported(self, options: dict) -> str | None:
        """Return why clients cannot be tested on classes that none trained on; None if they can."""
        if holds(self.unseen_classes, options):
            return None
        if self.family == "clip":
            return f"{self.name} does not declare that it predicts among others (unseen_classes)"
        return f"the head of {self.name} has an output for each class that it was trained on alone"

    def refused_parts(self, options: dict, micro_batch: int | None, stacked: bool) -> str | None:
        """Return why a study must not divide the method's batches or cohorts, and what to change.

        Return None if the study may divide them.
        """
        line = "with these options {} depends on the other {}; set {}"
        if micro_batch is not None and holds(self.couples_images, options):
            loss = "the loss of an image", "images of its batch", "training.micro_batch: null"
            return line.format(*loss)
        if not stacked and self.needs_whole_cohorts(options):
            return line.format("a client's update", "clients of its round", "study.stacked: true")
        return None

    def aggregation_with(self, options: dict) -> str | None:
        """Return the mean of the updates that the server takes; None if it uses each update."""
        if not isinstance(self.aggregation, dict):
            return self.aggregation
        means = [mean for mean, condition in self.aggregation.items() if holds(condition, options)]
        # where the conditions of both hold, plain comes first
        if "plain" in means:
            return "plain"
        return next(iter(means), None)

    def trains_weights(self, options: dict) -> bool:
        """Return True if clients may train weights of the backbone."""
        pattern = self.cost.trains_weights
        return pattern is not None and options[pattern] not in ("prompts", "head")

    def prompts_of_a_block(self, options: dict) -> int:
        """Return how many prompts a block of a ViT has besides an image's tokens."""
        pattern = self.cost.trains_weights
        if pattern is not None and options[pattern] != "prompts":
            return 0

        # an entry is a number, or the name of an option that holds one
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
        """Return what clients train, as tables call it; "" if this is unknown."""
        pattern = self.cost.trains_weights
        if pattern is None and not self.trained:
            return NOTHING
        if pattern is None:
            return self.trains
        return TRAINED_PARTS.get(options[pattern], "some weights + head")

    def has_server_model(self, options: dict) -> bool:
        """Return True if `predict` answers for the server's model."""
        return not holds(self.cost.no_server_model, options)

    def merge_training(self, *overrides: dict) -> dict:
        """Return the paper's training options with these overrides, of which a later one wins."""
        return reduce(or_, overrides, DEFAULTS | self.training_defaults.given)

    def complete_options(self, given: dict, where: KeyPath | None = None) -> dict:
        """Check the given options, and return them with defaults for the missing ones.

        `where` is the key path that the options stand at. By default an error names the plugin.
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


def _names_in(value: object) -> list[str]:
    """Return the options that a key's value names: a text, or the texts among its entries."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict | list | tuple):
        return [entry for entry in value if isinstance(entry, str)]
    return []


@cache
def discover_methods(folder: Path | None = None) -> PluginCatalogue[MethodManifest]:
    """Return the methods and wrappers of `folder`, and the installed ones.

    Without `folder`, all plugin folders are searched.
    """
    if folder:
        return discover_plugins("method", [folder], MethodManifest)
    return discover_plugins("method", plugin_folders(), MethodManifest)


def find_method(name: str, where: KeyPath = METHOD, role: str | None = None) -> MethodManifest:
    """Return the manifest of a method or a wrapper.

    Args:
        name: the plugin's name.
        where: the key path that gave the name.
        role: "method" or "wrapper", if the plugin must be one of them.

    Raises:
        FedLoomError: there is no such plugin, or it is broken. The error for an unknown name
            suggests the nearest one.
    """
    plugins = discover_methods()
    known = [k for k, plugin in plugins.items() if role in (None, plugin.kind)]
    if name not in plugins.errors:
        where.check_known(name, known, f"no {role or 'method'}")
    return plugins[name]


# functions and classes by the names that they had before 2026-11-28
RENAMED = {"find": "find_method", "discover": "discover_methods", "Plugin": "MethodManifest"}

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, RENAMED)
