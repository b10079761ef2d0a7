"""The options of pfedpg.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Number K of prompt tokens at the first block (Table 5). The paper has 3 for
    Dermoscopic-FL."""

    generator: Literal["attention", "mlp", "adain", "basis"]
    """Source of a client's prompts (Table 4). With `basis`, they are the same for all, P_n =
    P_base."""

    key_dim: int
    """Length of keys and values of the generator `attention`, l_k = l_v of Eq. 3, at most the width
    of the backbone. The paper does not report it."""

    hidden_dim: int
    """Number of hidden units of the generator `mlp`. The paper does not report it."""

    server_lr: float
    """Learning rate alpha of the server (Eq. 5)."""

    inference: Literal["adapted", "generated"]
    """Prompts to predict with: those that the client trained last (`adapted`), or those that the
    server generated last (`generated`)."""

    newcomer_head: Literal["mean", "untrained"]
    """Head of a client that never trained, and of the server's model: the `mean` of the trained
    heads, or an `untrained` one. No paper states it."""

    head: Literal["personal", "shared"]
    """`personal`: every client has its own head; `shared`: the server averages the heads, weighted
    by training images, as the numbers that SGPT's paper prints for pFedPG imply."""

    common_model: bool
    """Whether the accuracy on all test images is that of a common model: the basis P_base with the
    shared or mean head, as in PFPT's paper. With false, it is the mean over the participating
    clients' own models, as in SGPT's paper."""
