"""The config, resolved: labels with what they stand for, and what files and plugins say of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom.common.checkout import resource

if TYPE_CHECKING:
    from fedloom.config.output_kinds import OutputKind
    from fedloom.config.study import Protocol, Study
    from fedloom.hooks.discovery import Found

VALIDATION = ".validation"  # ends the label of a partition that trials are trained on
# the kind of backbone that a library gives
FAMILIES = {"timm": "vit", "open_clip": "clip", "torchvision": "resnet"}


@dataclass(frozen=True)
class FixedSeeds:
    """The seeds of `study.fixed_seeds` that replace the run's, where they are set."""

    sampling: int | None = None
    initialisation: int | None = None


NOTHING_FIXED = FixedSeeds()


@dataclass(frozen=True)
class Trial:
    """A combination of options that a method tries, and the label of the method that has them.

    Attributes:
        options: those in which the trials differ, `training.` before those of training.
    """

    label: str
    options: dict[str, Any]


class Expected(NamedTuple):
    """The numbers that are known of a dataset before it is read, for estimates; None if unknown.

    Attributes:
        test: number of test images among `images`.
    """

    images: int | None = None
    classes: int | None = None
    test: int | None = None


NOTHING_EXPECTED = Expected()


@dataclass(frozen=True)
class Dataset:
    """A label of the config's `datasets`.

    Attributes:
        settings: the keys that the source reads.
        listing: number and digest of the user's files, see `listing` of fedloom.config.datasets.
        expected: numbers that its recipe or its keys state.
        domains: the number of domains that its recipe states, or None.
        notes: what its recipe says of differences from papers, for the report.
    """

    label: str
    source: str
    settings: dict[str, Any]
    listing: dict[str, Any] | None = None
    expected: Expected = NOTHING_EXPECTED
    domains: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition:
    """A label of the config's `partitions`; `settings` are the keys that the scheme reads."""

    label: str
    scheme: str
    settings: dict[str, Any]

    @property
    def holds_out(self) -> bool:
        """True if some clients never train."""
        return bool(self.settings["held_out"] or self.settings.get("held_out_per_domain"))


@dataclass(frozen=True)
class Backbone:
    """A label of the config's `backbones`.

    Attributes:
        settings: name, weights and image size, as the library reads them; of a run whose study
            sets another `precision` than float32, also that, and `gradient_checkpointing` if true.
        sha256: of the weights, where they are a local file.
    """

    label: str
    library: str
    settings: dict[str, Any]
    sha256: str | None = None

    @property
    def family(self) -> str:
        """The kind of backbone that the library gives: vit, clip or resnet."""
        return FAMILIES[self.library]

    @property
    def precision(self) -> str:
        """Return the number format in which it computes (see fedloom.common.device)."""
        return self.settings.get("precision", "float32")


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
class Look:
    """Colour, line and marker of a method in one figure, see fedloom.config.line_style.deal."""

    colour: str
    line: int
    marker: str


@dataclass(frozen=True)
class Grid:
    """A label that stands for one method per combination of option values.

    Attributes:
        axes: name and values of every axis, in order.
        options: the options that the axes touch, with the values that the label gives them;
            training options as `training.lr`.
    """

    label: str
    title: str
    axes: tuple[tuple[str, list], ...]
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class GridMember:
    """One combination of a grid's values.

    Attributes:
        at: its value on every axis.
        options: the options that the axes touch, lists as a whole.
        title: the grid's.
    """

    grid: str
    position: int
    at: dict[str, Any]
    options: dict[str, Any]
    title: str


@dataclass(frozen=True)
class Method:
    """A label of the config's `methods`: a plugin with its options, or a member of a grid.

    Attributes:
        look: the colour and marker that the plugin asks for.
        training: all training options, without those of a partition's protocol.
        own_training: the label's, which override those of study and partition.
        rounds: the label's number of rounds; None: that of the partition or the study.
    """

    label: str
    plugin: str
    title: str
    options: dict[str, Any]
    training: dict[str, Any]
    wrappers: tuple[Wrapper, ...]
    families: tuple[str, ...]
    needs: tuple[str, ...]
    artefacts: tuple[str, ...]
    look: dict[str, str]
    own_training: dict[str, Any]
    rounds: int | None = None
    member: GridMember | None = None


@dataclass(frozen=True)
class Scenario:
    """A dataset and a partition of it, by their labels."""

    dataset: str
    partition: str

    def __str__(self) -> str:
        return f"{self.dataset}/{self.partition}"


@dataclass(frozen=True)
class Output:
    """A label of the config's `tables` or `figures`.

    Attributes:
        section: tables or figures.
        scenarios, backbones, methods: the runs that it shows, crossed in that order.
        published: a paper's numbers to put beside the measured ones (tables).
        extra: what its kind reads of the study and of files, beside its keys.
    """

    section: str
    label: str
    kind: str
    keys: "OutputKind"
    scenarios: tuple[Scenario, ...] = ()
    backbones: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    published: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

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
    """The whole config; every mapping is by label. Trials and their partitions are in it too.

    Attributes:
        trials: of every method, where `study.tune` is set and the method is trained.
        citation: of the paper that the study is of.
    """

    study: "Study"
    datasets: dict[str, Dataset]
    partitions: dict[str, Partition]
    protocols: dict[str, "Protocol"]
    backbones: dict[str, Backbone]
    methods: "Found[Method]"
    grids: dict[str, Grid]
    tables: dict[str, Output]
    figures: dict[str, Output]
    select: Selection
    trials: dict[str, tuple[Trial, ...]] = field(default_factory=dict)
    citation: str | None = None
