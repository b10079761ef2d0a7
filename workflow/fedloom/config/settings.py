"""Define the resolved config: what every label stands for, with facts from files and plugins."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import yaml

from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Keys, Several
from fedloom.machine.install import resource

if TYPE_CHECKING:
    from fedloom.config.study import Protocol, Study
    from fedloom.hooks.discovery import PluginCatalogue

# the end of the label of a partition on which trials are trained
VALIDATION = ".validation"
# the family of the backbones that a library has
FAMILIES = {"timm": "vit", "open_clip": "clip", "torchvision": "resnet"}
# the family of all backbones that plugins bring
FAMILY_OF_PLUGINS = "vit"
# the library that a family's backbones come from, without those of plugins
LIBRARIES = {family: library for library, family in FAMILIES.items()}

# the keys of tables and figures that are not handed on to their kind
NOT_OF_A_KIND = {"title", "scenarios", "backbones", "methods", "published"}
# FedLoom's own models; all files of their weights are made for FedLoom's normalisation of images
MICRO = ("micro_vit", "micro_vit_gap", "micro_clip")


@dataclass(frozen=True)
class ResolvedSeeds:
    """The seeds of `study.fixed_seeds`, which replace the run's seed if they are set."""

    sampling: int | None = None
    initialisation: int | None = None


@dataclass(frozen=True)
class Trial:
    """A combination of options that a method tries, and the label of the method that has them."""

    label: str
    # the options in which the trials differ; a training option is named `training.lr`
    options: JsonDict


class Expected(NamedTuple):
    """Numbers of a dataset that are known before it is read, for estimates; None if unknown."""

    images: int | None = None
    classes: int | None = None
    # how many of the `images` are test images
    test: int | None = None


@dataclass(frozen=True)
class Dataset:
    """A label of the config's `datasets`."""

    label: str
    source: str
    # the keys of its entry that the source reads
    settings: JsonDict
    # number and digest of the user's files, see fedloom.config.datasets
    listing: JsonDict | None = None
    # the counts that its recipe or its keys state
    expected: Expected = field(default_factory=Expected)
    # the number of domains, if its recipe states it
    domains: int | None = None
    # where its recipe differs from the papers; the report prints this
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition:
    """A label of the config's `partitions`; `settings` are the keys that the scheme reads."""

    label: str
    scheme: str
    settings: JsonDict

    @property
    def holds_out(self) -> bool:
        """True if some clients never train."""
        keys = ("held_out", "held_out_per_domain", "held_out_domains")
        return any(self.settings.get(key) for key in keys)


class ComputeSettings(NamedTuple):
    """How a backbone computes.

    Attributes:
        precision: the number format (see fedloom.machine.device).
        gradient_checkpointing: True if a block's inside is not kept for the backward pass.
        compile: whether frozen blocks are compiled (see fedloom.backbones.compiled).
    """

    precision: str
    gradient_checkpointing: bool
    compile: bool | Literal["auto"]


def compute_settings(settings: JsonDict) -> ComputeSettings:
    """Return how a backbone of these settings computes."""
    return ComputeSettings(
        settings.get("precision", "float32"),
        bool(settings.get("gradient_checkpointing")),
        settings.get("compile", "auto"),
    )


def family_of(library: str) -> str:
    """Return the family of a library's backbones: vit, clip or resnet."""
    return FAMILIES.get(library, FAMILY_OF_PLUGINS)


@dataclass(frozen=True)
class BackboneSettings:
    """A label of the config's `backbones`."""

    label: str
    library: str
    # The keys of its entry. In a run, it also has `precision`, unless that is float32,
    # `gradient_checkpointing`, if that is true, and `compile`, unless that is "auto".
    settings: JsonDict
    # sha256 of the weights, if they are a local file
    sha256: str | None = None

    @property
    def family(self) -> str:
        """The kind of backbone that the library gives: vit, clip or resnet."""
        return family_of(self.library)

    @property
    def precision(self) -> str:
        """The number format in which it computes (see fedloom.machine.device)."""
        return compute_settings(self.settings).precision

    @property
    def notes(self) -> tuple[str, ...]:
        """The assumptions about weights from a file, which the file does not state."""
        name = self.settings["name"]
        keys = self.settings
        if name in MICRO or local_weights(self) is None:
            return ()

        # the normalisation of the images
        notes = []
        if "mean" not in keys and not (self.library == "timm" and "." in name):
            tag = ""
            if self.library == "timm":
                tag = ", or name timm's tag of the weights"
            notes.append(
                f"weights from a file are taken to be trained on images normalised as usual for "
                f"{name}; set mean and std{tag}"
            )

        # the activation function
        if self.library == "open_clip" and "quick_gelu" not in keys and "quickgelu" not in name:
            notes.append(
                f"weights from a file are taken to be trained without QuickGELU, as {name} is; "
                "set quick_gelu"
            )
        return tuple(notes)


def local_weights(backbone: BackboneSettings) -> Path | None:
    """Return the weights file of a backbone; None if a hub has the weights, or there are none."""
    return local_weights_file(backbone.library, backbone.settings["weights"])


def local_weights_file(library: str, weights: str) -> Path | None:
    """Return the file that `weights` names; None for a hub, a tag of open_clip, or no weights."""
    is_tag = library == "open_clip" and "/" not in weights and "." not in weights
    return None if weights in ("hub", "none") or is_tag else resource(weights)


@dataclass(frozen=True)
class Wrapper:
    """A plugin around a method's hooks, with all its options."""

    plugin: str
    options: JsonDict


@dataclass(frozen=True)
class Grid:
    """A label that stands for one method per combination of option values."""

    label: str
    title: str
    # the name and the values of every axis
    axes: tuple[tuple[str, list], ...]
    # the options that the axes change, with the values that the label gives them
    options: tuple[tuple[str, Any], ...]
    # the titles of axes, if they are not their names
    axis_titles: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class GridMember:
    """One combination of a grid's values."""

    grid: str
    position: int
    # the member's value on every axis
    at: JsonDict
    # the options that the axes change, as the member has them; lists are whole
    options: JsonDict
    # the title of the grid
    title: str
    # the titles of axes, if they are not their names
    axis_titles: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A label of the config's `methods`: a plugin with its options, or a member of a grid."""

    label: str
    plugin: str
    title: str
    options: JsonDict
    # every training option, before a partition's protocol overrides some
    training: JsonDict
    wrappers: tuple[Wrapper, ...]
    families: tuple[str, ...]
    needs: tuple[str, ...]
    artefacts: tuple[str, ...]
    # the colour and marker that the plugin asks for
    look: dict[str, str]
    # the training options of the label's own entry; they override study and partition
    own_training: JsonDict
    # the number of rounds of the label's own entry; it overrides the partition's
    rounds: int | None = None
    member: GridMember | None = None


@dataclass(frozen=True)
class ReportedRounds:
    """The rounds of a run whose accuracies tables report."""

    # the evaluated rounds over which tables average
    rounds: tuple[int, ...]
    # if given, the worst accuracy is the lowest mean over clients among these rounds; else it is
    # the accuracy of the worst client
    worst_of: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """A dataset and a partition of it, by their labels."""

    dataset: str
    partition: str

    def __str__(self) -> str:
        return f"{self.dataset}/{self.partition}"


# a check that the study suits an output; the error is about the key path of the output's entry
Requirement = Callable[["Settings", "OutputEntry", KeyPath], None]


@dataclass(frozen=True)
class KindSpec:
    """Declares which runs a kind of table or figure shows, and which data it needs."""

    # What the output shows: runs of methods, members of one grid or of several grids, frozen
    # backbones, data sets, or only the study's settings, which need no run.
    shows: Literal["runs", "grid", "grids", "backbones", "datasets", "settings"] = "runs"
    # the artefact that it reads beside evaluations
    artefact: str | None = None
    # the tables of a run that it reads beside evaluation and rounds (paths.RUN_TABLES)
    run_tables: tuple[str, ...] = ()
    # What the output reads of a backbone: its accuracy by block, or its features. If it shows runs,
    # "names" says that it reads the names of classes.
    reads: Literal["accuracy", "features", "names"] = "accuracy"
    # it shows only partitions that set this key
    partition_key: str | None = None
    # it shows only the runs of the study's first seed
    first_seed: bool = False
    # a row of the table combines a method's runs on all partitions
    across_partitions: bool = False
    # checks of the study, of report/requirements.py
    requires: tuple[Requirement, ...] = ()

    @property
    def shows_runs(self) -> bool:
        """True if it shows runs, each of one seed."""
        return self.shows in ("runs", "grid", "grids")


class OutputKind(Keys):
    """The keys of every table and figure, and what follows from its kind."""

    spec: ClassVar[KindSpec] = KindSpec()

    scenarios: Several[str] | None = None
    """Scenarios to show, each as <dataset>/<partition>. Default: all scenarios of the study."""
    backbones: Several[str] | None = None
    """Labels of the backbones to show. Default: all of `select.backbones`."""

    @classmethod
    def path_keys(cls) -> list[str]:
        """Return the keys whose value is the path of a file (`FilePath` of config.output_kinds)."""
        found = []
        for key, schema in cls.model_json_schema()["properties"].items():
            # a key that may be null has a schema for each of its types
            types = schema.get("anyOf", [schema])
            if any(each.get("format") == "path" for each in types):
                found.append(key)
        return found

    @property
    def own(self) -> JsonDict:
        """The keys, with their values, that are handed on to its kind."""
        return self.model_dump(exclude=NOT_OF_A_KIND, exclude_none=True)

    @property
    def caption(self) -> str:
        """The sentence that says what it shows, and one on the values that are not defaults.

        The first is the first paragraph of the docstring of its kind.
        """
        values = self.model_dump(exclude=NOT_OF_A_KIND, exclude_none=True, exclude_defaults=True)
        values = {key: value for key, value in values.items() if not isinstance(value, dict)}
        sentence = _paragraphs(self.__doc__)[0]
        if not values:
            return sentence

        style: dict[str, Any] = {"default_flow_style": True, "width": math.inf}
        shown = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, **style)
        return f"{sentence} Here {shown.strip()[1:-1]}."

    @property
    def details(self) -> list[str]:
        """The paragraphs of the kind's docstring after the first, which is the caption."""
        return _paragraphs(self.__doc__)[1:]

    def needs(self) -> KindSpec:
        """Return what the kind shows and needs; a kind overrides this if it depends on its keys."""
        return self.spec

    def complete(
        self, settings: "Settings", output: "OutputEntry", where: KeyPath
    ) -> "OutputEntry":
        """Return the output with what its kind reads from the study or from files, as `extra`.

        `where` is the key path of the output's entry, for errors about its keys:
        `raise (where / "levels").error("must be ...")`.
        """
        return output

    @classmethod
    def extra_of(cls, settings: JsonDict) -> JsonDict:
        """Return the part of a job's settings that `complete` has added to the keys."""
        return {key: value for key, value in settings.items() if key not in cls.model_fields}


def _paragraphs(docstring: str | None) -> list[str]:
    """Return the paragraphs of a docstring, each in one line; the first is "" if it is None."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs]


@dataclass(frozen=True)
class OutputEntry:
    """A table or figure, which shows the runs of all combinations of its labels."""

    section: str
    label: str
    kind: str
    # its entry in the config, checked by its kind
    entry: OutputKind
    scenarios: tuple[Scenario, ...] = ()
    backbones: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    # for tables: a paper's numbers, shown beside the measured ones
    published: JsonDict | None = None
    # what `OutputKind.complete` adds to the keys
    extra: JsonDict = field(default_factory=dict)
    # the caption's sentence that says to what the study was narrowed, if that changes the output
    narrowed: str = ""

    @property
    def settings(self) -> JsonDict:
        """All keys and values that its kind reads; its job contains them too."""
        return self.entry.own | self.extra


@dataclass(frozen=True)
class Selection:
    """The config's `select`: the labels that a study crosses, and its tables and figures."""

    scenarios: tuple[Scenario, ...]
    backbones: tuple[str, ...]
    methods: tuple[str, ...]
    tables: tuple[str, ...]
    figures: tuple[str, ...]

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets of the scenarios."""
        return tuple(dict.fromkeys(scenario.dataset for scenario in self.scenarios))

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions of the scenarios."""
        return tuple(dict.fromkeys(scenario.partition for scenario in self.scenarios))


@dataclass(frozen=True)
class Settings:
    """The whole config after checks; every mapping is by label.

    The methods and partitions also include those of trials (`study.tune`).
    """

    study: "Study"
    datasets: dict[str, Dataset]
    partitions: dict[str, Partition]
    protocols: dict[str, "Protocol"]
    backbones: dict[str, BackboneSettings]
    methods: "PluginCatalogue[Method]"
    grids: dict[str, Grid]
    tables: dict[str, OutputEntry]
    figures: dict[str, OutputEntry]
    select: Selection
    # the trials of `study.tune`, by method label
    trials: dict[str, tuple[Trial, ...]] = field(default_factory=dict)
    # the citation of the study's paper
    citation: str | None = None
    # what the user is told: inherited keys that were changed, and outputs that were left out
    notes: tuple[str, ...] = ()
    # the labels to which the study was narrowed, by key, and the settings of the whole study
    narrowing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    whole: "Settings | None" = None
