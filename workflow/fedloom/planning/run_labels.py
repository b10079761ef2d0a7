"""Define a run, which is named by its labels, and the wildcards of rules."""

from dataclasses import dataclass
from types import SimpleNamespace

# the name of a run, which is its folder
RUN_NAME = "{dataset}/{partition}/{backbone}/{method}/seed{seed}"


class Wildcards(SimpleNamespace):
    """The wildcards of a rule. An object has only those that the rule's pattern names.

    Snakemake passes an object of its own class, which has the same attributes.
    """

    dataset: str
    partition: str
    backbone: str
    method: str
    # Snakemake's wildcards are text
    seed: int | str
    # "features" or "patches"
    cache: str
    artefact: str
    # the last round of a training job, see paths.four_digits
    end: str
    # of a table or figure
    study: str
    label: str


@dataclass(frozen=True, order=True)
class Run:
    """One method on one partition, trained from one seed; named by its labels."""

    dataset: str
    partition: str
    backbone: str
    method: str
    seed: int

    @classmethod
    def from_labels(cls, wildcards: "Run | Wildcards") -> "Run":
        """Return the run that a rule's wildcards, or a run with more facts, name."""
        return cls(
            dataset=wildcards.dataset,
            partition=wildcards.partition,
            backbone=wildcards.backbone,
            method=wildcards.method,
            seed=int(wildcards.seed),
        )

    @property
    def path(self) -> str:
        """The run's folder below results/runs, which is also its name in logs."""
        return RUN_NAME.format(**vars(self))
