"""The options of sgpt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "released"]
    """paper, or released: what the authors' code does instead
    (plugins/methods/sgpt/released.py)."""

    groups: int
    """G: 20 for CIFAR-100, 5 for Five-Dataset, 4 for Office, 6 for DomainNet."""

    shared: bool
    """With shared prompts (Table 3)."""

    group: bool
    """With group prompts (Table 3)."""

    bcd: Literal["shared_first", "group_first", "none"]
    """Block coordinate descent: Algorithm 1, its two blocks swapped, or all at once (Table 3)."""

    shared_prompts: int
    """Shared prompt tokens at each of their blocks."""

    group_prompts: int
    """Group prompt tokens at each of their blocks."""

    shared_blocks: list[int]
    """blocks, counted from 1, with shared prompts (Fig. 4); released: 1-4 at s = 10, 1-5 at s =
    50."""

    group_blocks: list[int]
    """Blocks with group prompts (Fig. 4); released: 5-7 at s = 10, 6-7 at s = 50."""

    query_block: int
    """Select by the class token at the input of this block: 6 for feature heterogeneity, released
    7; 0: by the final one."""

    frequency: bool
    """Weigh the groups by q_g while training (Eq. 6; Table 4)."""

    majority: bool
    """While training, all images of a batch take the group that most of them chose, as the released
    code does on domain data."""

    key_momentum: float
    """alpha_k of Eq. 7 (Fig. 6a); released for Office: 0."""

    prompt_momentum: float
    """alpha_g of Eq. 7, of the group prompts (Fig. 6b)."""
