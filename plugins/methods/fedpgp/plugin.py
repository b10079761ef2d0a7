"""FedPGP: a shared context plus a personal part of low rank, with a contrast between the two.

Cui et al., "Harmonizing Generalization and Personalization in Federated Prompt Learning" (ICML
2024). The context of a client is sigma + U V. sigma [L, d] is averaged, weighted by training
images. U [L, r] and V [r, d] never leave the client. Choices that the paper leaves open:

- All three start from N(0, 0.02²). U and V start with the same values on all clients, as in the
  authors' code.
- The contrastive term is that of the authors' code, between text features. For every class, the
  prompt of sigma should be near that of the written text "X X ... X <class>." (positive), and far
  from that of sigma + U V (negative). Their cosines enter a two-way cross-entropy, which is
  averaged over classes.
- A client that never trained is evaluated with the first U and V. The server's model is sigma.
- The authors' trainer has one optimiser for all clients, which carries the momentum of one client
  to the next. Here every client starts each round without momentum.
"""

from typing import Any

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.Task[Any, Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    """Return a fresh sigma [L, d]."""
    sigma = fl.init_context(task, task.options.length, "", task.generator("sigma"))
    return {"params": {"sigma": sigma}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    """Return fresh U [L, r] and V [r, d], the same for all clients."""
    clip = task.backbone
    options = task.options
    generator = task.generator("low rank")
    v = clip.init_context(options.rank, generator)
    u = 0.02 * torch.randn(options.length, options.rank, generator=generator)
    return {"u": u.to(clip.device), "v": v}


def personal_contexts(params: Tree) -> Tensor:
    """Return the personal contexts sigma + U V [K, L, d] of the clients."""
    return params["sigma"] + params["u"] @ params["v"]


@torch.no_grad()
def written_features(task: Task) -> Tensor:
    """Return the features [C, d_joint] of the written texts "X X ... X <class>."."""
    context = task.backbone.embed_text(" ".join("X" * task.options.length))  # [L, d]
    return task.backbone.text_features(context, task.data.classes)


def contrast(task: Task, written: Tensor, under_sigma: Tensor, under_own: Tensor) -> Tensor:
    """Return the contrastive term [K] of every client.

    It is -log(exp(near / t) / (exp(near / t) + exp(far / t))), averaged over classes. Here t is the
    temperature, near = cos(under_sigma, written) and far = cos(under_sigma, under_own).

    Args:
        written: features [K, C, d_joint] of the written texts, of unit length.
        under_sigma: text features under sigma, of the same shape.
        under_own: text features under sigma + U V, of the same shape.
    """
    near = (written * under_sigma).sum(-1)  # [K, C]
    far = (under_sigma * under_own).sum(-1)  # [K, C]
    pair = torch.stack([near, far], -1) / task.options.temperature
    return -pair.log_softmax(-1)[..., 0].mean(-1)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Return the cross-entropy plus mu times the contrastive term [K, B]; report the first."""
    clip = task.backbone
    contexts = torch.stack([params["sigma"], personal_contexts(params)], 1)  # [K, 2, L, d]
    text = clip.text_features(contexts, task.data.classes)  # [K, 2, C, d_joint]
    under_sigma, under_own = text.unbind(1)
    entropy = fl.cross_entropy(clip.logits(batch.features, under_own), batch.labels)  # [K, B]
    contrastive = contrast(task, received["written"], under_sigma, under_own)
    return entropy + task.options.mu * contrastive[:, None], {"reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Train sigma, U and V; upload sigma and keep the others."""
    start = received["params"] | clients.state
    known = {**received, "written": written_features(task).expand(len(clients), -1, -1)}
    trained = fl.train_locally(task, loss, known, clients, params=start)
    return fl.make_updates(trained, clients, kept=clients.state)


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return logits [K, B, C] under sigma + U V, or under sigma for the server's model."""
    params = received["params"]
    clip = task.backbone
    context = (
        params["sigma"] if clients.is_server_model else personal_contexts(params | clients.state)
    )
    return clip.logits(batch.features, clip.text_features(context, task.data.classes))
