"""A network that reads tokens by cross-attention, with an MLP behind it, as in a Perceiver.

Jaegle et al., "Perceiver: General Perception with Iterative Attention" (ICML 2021).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.backbones.vit import linear
from fedloom.common.initial_values import init_uniform
from fedloom.common.trees import Tree


def init_cross_attention(
    width: int, read: int, generator: torch.Generator, device: torch.device
) -> Tree:
    """Draw a network whose queries have `width` d and whose keys have width `read` d'.

    Projections are drawn as torch's MultiheadAttention draws them (Glorot's uniform, of the three
    as one matrix where d' = d); its output and the MLP as torch draws linear layers.
    """

    def uniform(bound: float, *shape: int) -> Tensor:
        return init_uniform(bound, *shape, generator=generator, device=device)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, device=device)

    def norm(size: int) -> Tree:
        return {"scale": torch.ones(size, device=device), "shift": zeros(size)}

    # Glorot's bound follows from the rows and columns that are drawn as one matrix
    d = width
    if read == d:
        fan_q = 4 * d
        fan = 4 * d
    else:
        fan_q = 2 * d
        fan = d + read

    # draws come from one stream: to change the order of these entries would change the numbers
    return {
        "norm_queries": norm(d),
        "norm_keys": norm(read),
        "norm_mlp": norm(d),
        "q": {"weight": uniform((6 / fan_q) ** 0.5, d, d), "bias": zeros(d)},
        "k": {"weight": uniform((6 / fan) ** 0.5, d, read), "bias": zeros(d)},
        "v": {"weight": uniform((6 / fan) ** 0.5, d, read), "bias": zeros(d)},
        "out": {"weight": uniform(d**-0.5, d, d), "bias": zeros(d)},
        "up": {"weight": uniform(d**-0.5, 8 * d, d), "bias": uniform(d**-0.5, 8 * d)},
        "down": {
            "weight": uniform((4 * d) ** -0.5, d, 4 * d),
            "bias": uniform((4 * d) ** -0.5, d),
        },
    }


def read_tokens(
    params: Tree,
    queries: Tensor,
    keys: Tensor,
    given: Tensor,
    heads: int,
    values: Tensor | None = None,
) -> Tensor:
    """Return what each of the queries [K, m, d] has read, with the clients' networks.

    The networks are those of `init_cross_attention`. The attention has no skip connection. The MLP
    has one, and gates one half of 8 d hidden units by the GELU of the other half.

    Args:
        keys: [K, n, d']; they pass a norm, as queries do.
        given: which keys a client's network reads, bool [K, n].
        values: [K, n, d']; default: the keys behind their norm.
    """

    # [K, ., d] to [K, heads, ., d / heads]
    def project(x: Tensor, name: str) -> Tensor:
        return apply_linear(x, params[name]).unflatten(-1, (heads, -1)).transpose(1, 2)

    # what passes a norm, and what does not
    keys = apply_norm(keys, params["norm_keys"])
    if values is None:
        values = keys

    # the attention
    q = project(apply_norm(queries, params["norm_queries"]), "q")
    k = project(keys, "k")
    v = project(values, "v")
    read = F.scaled_dot_product_attention(q, k, v, attn_mask=given[:, None, None])
    x = apply_linear(read.transpose(1, 2).flatten(2), params["out"])  # [K, m, d]

    # the gated MLP
    value, gate = apply_linear(apply_norm(x, params["norm_mlp"]), params["up"]).chunk(2, -1)
    return x + apply_linear(value * F.gelu(gate), params["down"])


def apply_linear(x: Tensor, layer: Tree) -> Tensor:
    """Return x W^T + b [K, ..., o] of x [K, ..., i], `weight` W [K, o, i] and `bias` b [K, o]."""
    return linear(x, layer["weight"], layer["bias"])


def apply_norm(x: Tensor, norm: Tree) -> Tensor:
    """Return the layer norm [K, n, d] of x [K, n, d] with scale and shift [K, d]."""
    return F.layer_norm(x, x.shape[-1:]) * norm["scale"][:, None] + norm["shift"][:, None]
