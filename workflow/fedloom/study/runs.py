"""A run and its name."""

from dataclasses import dataclass

NAME = "{dataset}/{partition}/{backbone}/{method}/seed{seed}"  # of a run


@dataclass(frozen=True, order=True)
class Run:
    """One method on one partition, trained from one seed; named by its labels."""

    dataset: str
    partition: str
    backbone: str
    method: str
    seed: int

    @property
    def path(self) -> str:
        """The run's folder below results/runs, which is also its name in logs."""
        return NAME.format(**vars(self))
