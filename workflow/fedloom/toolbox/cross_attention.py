"""A network that reads tokens by cross-attention, followed by an MLP, as in a Perceiver.

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
    """Draw the parameters of a network with queries of width d and keys of width d'.

    The projections q, k and v are drawn from Glorot's uniform distribution, as torch's
    MultiheadAttention draws them: together as one matrix if d' = d, else each for itself. The
    output layer and the MLP are drawn as torch draws linear layers.

    Args:
        width: d.
        read: d'.
    """

    def uniform(bound: float, *shape: int) -> Tensor:
        return init_uniform(bound, *shape, generator=generator, device=device)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, device=device)

    def norm(size: int) -> Tree:
        return {"scale": torch.ones(size, device=device), "shift": zeros(size)}

    # Glorot's bound is sqrt(6 / fan), where fan is the sum of the rows and columns of the matrix
    d = width
    if read == d:
        fan_q = 4 * d
        fan = 4 * d
    else:
        fan_q = 2 * d
        fan = d + read

    # all draws come from one random stream, so another order of these entries gives other numbers
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
    """Return what each query has read from the tokens, [K, m, d], with each client's network.

    The networks are those of `init_cross_attention`. The attention has no skip connection, but the
    MLP has one. The MLP has 8 d hidden units; the GELU of one half gates the other half.

    Args:
        params: the clients' networks [K, ...].
        queries: [K, m, d]; they pass a layer norm.
        keys: the tokens that are read, [K, n, d']; they pass a layer norm.
        given: bool [K, n], which keys the client's network reads.
        heads: number of heads of the attention.
        values: [K, n, d']; default: the keys after their layer norm.
    """

    # map [K, ., d] to [K, heads, ., d / heads]
    def project(x: Tensor, name: str) -> Tensor:
        return apply_linear(x, params[name]).unflatten(-1, (heads, -1)).transpose(1, 2)

    # keys pass a norm; values do not, unless they are the keys
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
    """Return x W^T + b [K, ..., o] for x [K, ..., i].

    `layer` has the `weight` W [K, o, i] and the `bias` b [K, o].
    """
    return linear(x, layer["weight"], layer["bias"])


def apply_norm(x: Tensor, norm: Tree) -> Tensor:
    """Return the layer norm [K, n, d] of x [K, n, d], with `scale` and `shift` [K, d]."""
    return F.layer_norm(x, x.shape[-1:]) * norm["scale"][:, None] + norm["shift"][:, None]
