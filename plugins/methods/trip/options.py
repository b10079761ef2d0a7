"""The options of trip.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    experts: int
    """Number E of experts, whose contexts are mixed."""

    length: int
    """Number L of tokens of a context."""

    same_start: bool
    """Whether all experts start from the same context, as in the released code. With false, the
    context of each is drawn separately."""

    capacity_train: float
    """Largest number of patches of a cluster in training, in multiples of an equal share of all
    patches."""

    capacity_test: float
    """Largest number of patches of a cluster in tests, in multiples of an equal share of all
    patches."""

    weight: float
    """Weight alpha of the cross-entropy with the probabilities of hand-written texts."""

    beta: float
    """Value of both parameters of a Beta density. It weights the rounds in the mean of their
    contexts; this mean is tested."""

    templates: list[str]
    """Hand-written texts, in which the class name takes the place of {}. Their features are
    averaged."""
