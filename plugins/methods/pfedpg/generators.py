"""The prompt generators of Table 4: prompts P_n [N, P, d] from phi and descriptors d_n [N, d]."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree

from .options import Options

Task = fl.ViTTask[Options]


def attention(phi: Tree, descriptors: Tensor) -> Tensor:
    """Return prompts P_n = P_base + softmax(Q K^T / sqrt(l_k)) V W_O [N, P, d] (Eq. 3).

    Q = d_n W_Q, K = P_base W_K and V = P_base W_V. A client has one query, so all its tokens get
    the same addition.
    """
    basis = phi["basis"]  # [P, d]
    w = phi["generator"]
    query = descriptors @ w["query"]  # [N, l_k]
    key = basis @ w["key"]  # [P, l_k]
    value = basis @ w["value"]  # [P, l_v]
    weights = torch.softmax(query @ key.mT / key.shape[-1] ** 0.5, -1)  # [N, P]
    return basis + (weights @ value @ w["output"])[:, None]


def mlp(phi: Tree, descriptors: Tensor) -> Tensor:
    """Return prompts [N, P, d], each token by its own linear layer on relu(d_n W + b)."""
    w = phi["generator"]
    hidden = F.relu(descriptors @ w["hidden"] + w["bias"])  # [N, hidden]
    return torch.einsum("ni,ipd->npd", hidden, w["tokens"])


def adain(phi: Tree, descriptors: Tensor) -> Tensor:
    """Return the basis [N, P, d] with the mean and deviation of each client's descriptor.

    Each token of the basis is normalised over the width d, and gets the mean and the standard
    deviation of the descriptor.
    """
    deviation, mean = torch.std_mean(descriptors, -1, correction=0)  # [N]
    normed = F.layer_norm(phi["basis"], phi["basis"].shape[-1:])  # [P, d]
    return deviation[:, None, None] * normed + mean[:, None, None]


def basis(phi: Tree, descriptors: Tensor) -> Tensor:
    """Return the basis for each client [N, P, d]."""
    return phi["basis"].expand(len(descriptors), -1, -1)


GENERATORS: dict[str, Callable[[Tree, Tensor], Tensor]] = {
    "attention": attention,
    "mlp": mlp,
    "adain": adain,
    "basis": basis,
}


def init_phi(task: Task) -> Tree:
    """Return what the server trains, before training.

    `descriptors` are [N, d] for the N participating clients. All generators but the mlp have a
    `basis` [P, d]. `generator` has the weights of the generators attention and mlp; the other two
    have none.
    """
    vit = task.backbone
    options = task.options
    width = task.backbone.width
    clients = len(task.data.participating)

    def xavier(name: str, rows: int, columns: int) -> Tensor:
        """Draw a weight [rows, columns] from Xavier's uniform distribution."""
        weight = torch.empty(rows, columns)
        torch.nn.init.xavier_uniform_(weight, generator=task.generator(name))
        return weight.to(vit.device)

    stream = task.generator("descriptors")
    if options.generator == "adain":
        descriptors = vit.init_prompts(clients, stream)
    else:
        descriptors = torch.randn(clients, width, generator=stream).to(vit.device)
    phi: Tree = {"descriptors": descriptors}
    if options.generator != "mlp":
        phi["basis"] = vit.init_prompts(options.prompts, task.generator("basis"))
    if options.generator == "attention":
        keys = min(options.key_dim, width)
        weights = {name: xavier(name, width, keys) for name in ("query", "key", "value")}
        phi["generator"] = weights | {"output": xavier("output", keys, width)}
    if options.generator == "mlp":
        hidden = options.hidden_dim
        tokens = vit.init_prompts(hidden * options.prompts, task.generator("tokens"))
        phi["generator"] = {
            "hidden": xavier("hidden", width, hidden),
            "bias": torch.zeros(hidden, device=vit.device),
            "tokens": tokens.unflatten(0, (hidden, -1)) / hidden**0.5,  # [hidden, P, d]
        }
    return phi
