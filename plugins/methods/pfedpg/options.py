"""The options of pfedpg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Prompt tokens at the first block, K (Table 5); 3 for Dermoscopic-FL."""

    generator: Literal["attention", "mlp", "adain", "basis"]
    """Source of a client's prompts (Table 4); basis: the same for all, P_n = P_base."""

    key_dim: int
    """Length of keys and values of attention, l_k = l_v of Eq. 3, at most the width; not reported
    in the paper."""

    hidden_dim: int
    """Hidden units of mlp; not reported in the paper."""

    server_lr: float
    """Alpha of Eq. 5."""

    inference: Literal["adapted", "generated"]
    """Predict with the prompts that the client last trained, or with those the server last made."""

    newcomer_head: Literal["mean", "untrained"]
    """Head of a client that never trained, and of the server's model; not given in any paper."""

    head: Literal["personal", "shared"]
    """a head of every client's own, or one that the server averages by training images, as SGPT's
    numbers of pFedPG imply."""

    common_model: bool
    """The accuracy on all test images is that of the basis with the shared or mean head (PFPT);
    false: the mean over the participants' own models (SGPT)."""
