"""Define the resolved config: what every label stands for, with facts from files and plugins."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import yaml

from fedloom.common.schema import Keys, Several
from fedloom.machine.install import resource

if TYPE_CHECKING:
    from fedloom.config.study import Protocol, Study
    from fedloom.hooks.discovery import PluginCatalogue

VALIDATION = ".validation"  # ends the label of a partition that trials are trained on
# the kind of backbone that a library gives
FAMILIES = {"timm": "vit", "open_clip": "clip", "torchvision": "resnet"}

# keys of tables and figures that no kind reads
NOT_OF_A_KIND = {"title", "scenarios", "backbones", "methods", "published"}
MICRO = ("micro_vit", "micro_clip")  # FedLoom's models, whose files all have its normalisation


@dataclass(frozen=True)
class ResolvedSeeds:
    """The seeds of `study.fixed_seeds` that replace the run's, where they are set."""

    sampling: int | None = None
    initialisation: int | None = None


@dataclass(frozen=True)
class Trial:
    """A combination of options that a method tries, and the label of the method that has them."""

    label: str
    options: dict[str, Any]  # those in which the trials differ, `training.` before training's


class Expected(NamedTuple):
    """The numbers that are known of a dataset before it is read, for estimates; None if unknown."""

    images: int | None = None
    classes: int | None = None
    test: int | None = None  # images among all `images`


@dataclass(frozen=True)
class Dataset:
    """A label of the config's `datasets`."""

    label: str
    source: str
    settings: dict[str, Any]  # the keys that the source reads
    listing: dict[str, Any] | None = None  # of the user's files, see fedloom.config.datasets
    expected: Expected = field(default_factory=Expected)  # by its recipe or its keys
    domains: int | None = None  # their number, if its recipe states it
    notes: tuple[str, ...] = ()  # where its recipe differs from papers, for the report


@dataclass(frozen=True)
class Partition:
    """A label of the config's `partitions`; `settings` are the keys that the scheme reads."""

    label: str
    scheme: str
    settings: dict[str, Any]

    @property
    def holds_out(self) -> bool:
        """True if some clients never train."""
        keys = ("held_out", "held_out_per_domain", "held_out_domains")
        return any(self.settings.get(key) for key in keys)


@dataclass(frozen=True)
class Backbone:
    """A label of the config's `backbones`."""

    label: str
    library: str
    # of its entry; of a run also a `precision` but float32, and `gradient_checkpointing` if true
    settings: dict[str, Any]
    sha256: str | None = None  # of the weights, where they are a local file

    @property
    def family(self) -> str:
        """The kind of backbone that the library gives: vit, clip or resnet."""
        return FAMILIES[self.library]

    @property
    def precision(self) -> str:
        """Return the number format in which it computes (see fedloom.machine.device)."""
        return self.settings.get("precision", "float32")

    @property
    def notes(self) -> tuple[str, ...]:
        """The assumptions on weights from a file, which does not hold these facts."""
        name = self.settings["name"]
        keys = self.settings
        if name in MICRO or local_weights(self) is None:
            return ()

        # the normalisation of the images
        notes = []
        if "mean" not in keys and not (self.library == "timm" and "." in name):
            tag = ", or name timm's tag of the weights" if self.library == "timm" else ""
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


def local_weights(backbone: Backbone) -> Path | None:
    """Return the weights file of a backbone, None if a hub has the weights."""
    return weights_file(backbone.library, backbone.settings["weights"])


def weights_file(library: str, weights: str) -> Path | None:
    """Return the file that `weights` names, None for a hub, a tag of open_clip's, or no weights."""
    is_tag = library == "open_clip" and "/" not in weights and "." not in weights
    untrained = library == "torchvision" and weights == "none"
    return None if weights == "hub" or is_tag or untrained else resource(weights)


@dataclass(frozen=True)
class Wrapper:
    """A plugin around a method's hooks, with all its options."""

    plugin: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """A label that stands for one method per combination of option values."""

    label: str
    title: str
    axes: tuple[tuple[str, list], ...]  # name and values of each
    options: tuple[tuple[str, Any], ...]  # those that the axes touch, with the label's values


@dataclass(frozen=True)
class GridMember:
    """One combination of a grid's values."""

    grid: str
    position: int
    at: dict[str, Any]  # its value on every axis
    options: dict[str, Any]  # those that the axes touch, lists as a whole
    title: str  # the grid's


@dataclass(frozen=True)
class Method:
    """A label of the config's `methods`: a plugin with its options, or a member of a grid."""

    label: str
    plugin: str
    title: str
    options: dict[str, Any]
    training: dict[str, Any]  # complete, but without that of a partition's protocol
    wrappers: tuple[Wrapper, ...]
    families: tuple[str, ...]
    needs: tuple[str, ...]
    artefacts: tuple[str, ...]
    look: dict[str, str]  # the colour and marker that the plugin asks for
    own_training: dict[str, Any]  # the label's, which overrides that of study and partition
    rounds: int | None = None  # the label's, which override those of the partition
    member: GridMember | None = None


@dataclass(frozen=True)
class Reported:
    """The rounds of a run whose accuracies tables report."""

    rounds: tuple[int, ...]  # evaluated rounds to average
    worst_of: tuple[int, ...] = ()  # the worst accuracy is their lowest mean, else a client's


@dataclass(frozen=True)
class Scenario:
    """A dataset and a partition of it, by their labels."""

    dataset: str
    partition: str

    def __str__(self) -> str:
        return f"{self.dataset}/{self.partition}"


# a check of the settings for an output; the text begins its error
Requirement = Callable[["Settings", "Output", str], None]


@dataclass(frozen=True)
class KindSpec:
    """Declares which runs a kind of table or figure shows, and which data it needs."""

    # runs of methods; members of one grid, or of several; frozen backbones or data sets; or only
    # the settings, which need no run
    shows: Literal["runs", "grid", "grids", "backbones", "datasets", "settings"] = "runs"
    # the method's table that it reads beside evaluations
    artefact: str | None = None
    # of a backbone: accuracy by block, or features; of runs: names, if it reads those of classes
    reads: Literal["accuracy", "features", "names"] = "accuracy"
    # it shows only partitions that set this key
    partition_key: str | None = None
    # it shows the runs of the study's first seed alone
    first_seed: bool = False
    # a row of the table has a method's runs on all partitions
    across_partitions: bool = False
    # checks of the study, of report/requirements.py
    requires: tuple[Requirement, ...] = ()


class OutputKind(Keys):
    """The keys of every table and figure, and what follows from its kind."""

    spec: ClassVar[KindSpec] = KindSpec()

    scenarios: Several[str] | None = None
    """Datasets and partitions to show, as <dataset>/<partition>. Default: all of the study."""
    backbones: Several[str] | None = None
    """Labels of the backbones to show. Default: all of `select.backbones`."""

    @property
    def own(self) -> dict[str, Any]:
        """The keys that its kind reads."""
        return self.model_dump(exclude=NOT_OF_A_KIND, exclude_none=True)

    @property
    def caption(self) -> str:
        """The report's text on its kind: the description, and values other than the defaults."""
        values = self.model_dump(exclude=NOT_OF_A_KIND, exclude_none=True, exclude_defaults=True)
        values = {key: value for key, value in values.items() if not isinstance(value, dict)}
        description = self.__doc__ or ""
        if not values:
            return description

        style: dict[str, Any] = {"default_flow_style": True, "width": math.inf}
        shown = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, **style)
        return f"{description} Here {shown.strip()[1:-1]}."

    def needs(self) -> KindSpec:
        """Return what the kind shows and needs; a kind where that depends on keys overrides it."""
        return self.spec

    def complete(self, settings: "Settings", output: "Output", where: str) -> "Output":
        """Return the output with what its kind reads of the study or of files (`extra`)."""
        return output

    @classmethod
    def extra_of(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a job's settings that `complete` has added to the keys."""
        return {key: value for key, value in settings.items() if key not in cls.model_fields}


@dataclass(frozen=True)
class Output:
    """A table or figure: it shows the runs of its scenarios, backbones and methods, crossed."""

    section: str
    label: str
    kind: str
    keys: OutputKind
    scenarios: tuple[Scenario, ...] = ()
    backbones: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    published: dict[str, Any] | None = None  # a paper's numbers beside the measured ones (tables)
    extra: dict[str, Any] = field(default_factory=dict)  # what its kind reads beside its keys

    @property
    def settings(self) -> dict[str, Any]:
        """All that its kind reads beside runs, for its job."""
        return self.keys.own | self.extra


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
    """The whole config; every mapping is by label. Trials and their partitions are in it too."""

    study: "Study"
    datasets: dict[str, Dataset]
    partitions: dict[str, Partition]
    protocols: dict[str, "Protocol"]
    backbones: dict[str, Backbone]
    methods: "PluginCatalogue[Method]"
    grids: dict[str, Grid]
    tables: dict[str, Output]
    figures: dict[str, Output]
    select: Selection
    trials: dict[str, tuple[Trial, ...]] = field(default_factory=dict)  # of `study.tune`
    citation: str | None = None  # of the study's paper
    notes: tuple[str, ...] = ()  # on what the study does not inherit
