"""The options of pep_fedpt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    shared_prompts: int
    """Number n_S of shared prompt tokens at the first block (Table 10)."""

    ccmp: bool
    """Whether a mix of class prompts is inserted at `blocks`. With false, there are only shared
    prompts (Table 4)."""

    class_priors: bool
    """Whether classes are weighted by their share of the client's images. With false, all classes
    count alike (Table 5)."""

    blocks: list[int]
    """Blocks, counted from 1, at whose input the mixed prompt is inserted (Table 12)."""

    tau: float
    """Temperature of Eq. 13."""

    momentum: float
    """Weight rho of the old prototypes in an update of the prototypes (Eq. 12). The paper does not
    report it."""

    period: int
    """Number R of rounds between updates of the prototypes (Eq. 11). The paper does not report
    it."""
