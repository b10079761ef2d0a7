"""The options of sgpt.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    variant: Literal["paper", "released"]
    """`paper` follows the paper; `released` follows the authors' code
    (plugins/methods/sgpt/released.py)."""

    groups: int
    """Number G of groups. The paper has 20 for CIFAR-100, 5 for Five-Dataset, 4 for Office and 6
    for DomainNet."""

    shared: bool
    """Whether there are shared prompts (Table 3)."""

    group: bool
    """Whether there are group prompts (Table 3)."""

    bcd: Literal["shared_first", "group_first", "none"]
    """Order of the block coordinate descent: Algorithm 1 (`shared_first`), its two blocks swapped
    (`group_first`), or all at once (`none`) (Table 3)."""

    shared_prompts: int
    """Number of shared prompt tokens at each block of `shared_blocks`."""

    group_prompts: int
    """Number of group prompt tokens at each block of `group_blocks`."""

    shared_blocks: list[int]
    """Blocks with shared prompts, counted from 1 (Fig. 4). The released code has 1-4 at s = 10, and
    1-5 at s = 50."""

    group_blocks: list[int]
    """Blocks with group prompts, counted from 1 (Fig. 4). The released code has 5-7 at s = 10, and
    6-7 at s = 50."""

    query_block: int
    """Block at whose input the class token selects the group. The paper has 6 for feature
    heterogeneity, the released code 7. With 0, the final class token selects it."""

    frequency: bool
    """Whether groups are weighted by q_g in training (Eq. 6; Table 4)."""

    majority: bool
    """Whether all images of a training batch take the group that most of them chose, as in the
    released code on domain data."""

    key_momentum: float
    """Momentum alpha_k of the keys of groups (Eq. 7; Fig. 6a). The released code has 0 for
    Office."""

    prompt_momentum: float
    """Momentum alpha_g of the group prompts (Eq. 7; Fig. 6b)."""
