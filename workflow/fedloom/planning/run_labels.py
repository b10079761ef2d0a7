"""Define a run, which is named by its labels."""

from dataclasses import dataclass
from typing import Any

# the name of a run, which is its folder
RUN_NAME = "{dataset}/{partition}/{backbone}/{method}/seed{seed}"


@dataclass(frozen=True, order=True)
class Run:
    """One method on one partition, trained from one seed; named by its labels."""

    dataset: str
    partition: str
    backbone: str
    method: str
    seed: int

    @classmethod
    def of(cls, w: Any) -> "Run":
        """Return the run that a rule's wildcards name."""
        return cls(w.dataset, w.partition, w.backbone, w.method, int(w.seed))

    @property
    def path(self) -> str:
        """The run's folder below results/runs, which is also its name in logs."""
        return RUN_NAME.format(**vars(self))
