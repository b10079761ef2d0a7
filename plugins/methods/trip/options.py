"""The options of trip.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    experts: int
    """E, contexts that are mixed."""

    length: int
    """L, tokens of a context."""

    same_start: bool
    """All experts start from one context, as in the released code; false: each from its own."""

    capacity_train: float
    """Patches that a cluster takes in training, in equal shares of all patches."""

    capacity_test: float
    """The same where images are tested."""

    weight: float
    """alpha, of the cross-entropy with hand-written texts' probabilities."""

    beta: float
    """Both parameters of the Beta density that weights the rounds in the mean that is tested."""

    templates: list[str]
    """hand-written texts whose {} takes the class name; their features are averaged."""
