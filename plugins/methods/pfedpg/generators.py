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
    """Eq. 3: P_n = P_base + softmax(Q K^T / sqrt(l_k)) V W_O."""
    basis = phi["basis"]  # [P, d]
    w = phi["generator"]
    query = descriptors @ w["query"]  # [N, l_k]
    key = basis @ w["key"]  # [P, l_k]
    value = basis @ w["value"]  # [P, l_v]
    weights = torch.softmax(query @ key.mT / key.shape[-1] ** 0.5, -1)  # [N, P]
    return basis + (weights @ value @ w["output"])[:, None]


def mlp(phi: Tree, descriptors: Tensor) -> Tensor:
    """Generate each token by a separate linear layer on one shared hidden layer."""
    w = phi["generator"]
    hidden = F.relu(descriptors @ w["hidden"] + w["bias"])  # [N, hidden]
    return torch.einsum("ni,ipd->npd", hidden, w["tokens"])


def adain(phi: Tree, descriptors: Tensor) -> Tensor:
    """Give each token of the basis the mean and the deviation of the descriptor, over the width."""
    deviation, mean = torch.std_mean(descriptors, -1, correction=0)  # [N]
    normed = F.layer_norm(phi["basis"], phi["basis"].shape[-1:])  # [P, d]
    return deviation[:, None, None] * normed + mean[:, None, None]


def basis(phi: Tree, descriptors: Tensor) -> Tensor:
    """Give the basis to every client."""
    return phi["basis"].expand(len(descriptors), -1, -1)


GENERATORS: dict[str, Callable[[Tree, Tensor], Tensor]] = {
    "attention": attention,
    "mlp": mlp,
    "adain": adain,
    "basis": basis,
}


def init_phi(task: Task) -> Tree:
    """Initialise what the server trains: `descriptors` [N, d], `basis` [P, d], `generator`.

    The mlp has no basis, and neither adain nor basis have weights of a generator.
    """
    vit = task.backbone
    options = task.options
    width = task.backbone.width
    clients = len(task.data.participating)

    def xavier(name: str, rows: int, columns: int) -> Tensor:
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
