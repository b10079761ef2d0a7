"""The options of pep_fedpt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    shared_prompts: int
    """Shared prompt tokens at the first block, n_S (Table 10)."""

    ccmp: bool
    """Mix class prompts into the blocks below; false leaves the shared prompts (Table 4)."""

    class_priors: bool
    """Weigh classes by their share at the client; false: all alike (Table 5)."""

    blocks: list[int]
    """blocks, counted from 1, at whose input the mixed prompt is put (Table 12)."""

    tau: float
    """Temperature of Eq. 13."""

    momentum: float
    """Rho of Eq. 12: what stays of the old prototypes; not reported in the paper."""

    period: int
    """R of Eq. 11: rounds between updates of the prototypes; not reported in the paper."""
