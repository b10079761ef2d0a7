"""FedPHA: a shared context, and on every client a personal one of any length.

Fang et al., "FedPHA: Federated Prompt Learning for Heterogeneous Client Adaptation" (ICML 2025).
Equation numbers are the paper's. Each client has the global context and a local one. One loss term
pulls the local context towards its projection onto directions that the global context leaves out.
Another term pushes the two contexts apart. Predictions use only the local context.

Choices that the paper leaves open, or on which its parts disagree:

- rho. Eq. 9 keeps the d' = floor((1 - rho) d) weakest directions. Algorithm 1 slices V[:, d (1 -
  rho) : d], and so keeps rho d of them. Table 5 calls rho the null-space ratio. `variant: paper` is
  Eq. 9, and `variant: algorithm_1` is Algorithm 1. See projection.py.
- The projection is computed from the *received* global context, and is constant within a round.
  (Table 3 times it once a round. Algorithm 1 has it inside the loop over epochs.)
- Eq. 11 is a squared norm, but its text says mean squared error. Here it is the mean over classes
  and dimensions of features of unit length, as in the authors' code. Eq. 12 is averaged over
  classes.
- `variant: released` is the authors' code. It has another projection, and reads the features at
  another place. See released.py.
- The length of the local context is the same for all clients, or comes from a list, or is drawn for
  each client. With a list, consecutive clients share an entry, as the clients of a domain do.
- `same_start`: in the authors' code for one length, all clients start with the same local context.
  In their code for several lengths, each client starts with its own. Here each has its own by
  default.
- The global context is averaged, weighted by training images (Eq. 5). A client that never trained
  is evaluated with the local context that it would start from. There is no server model.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from . import released
from .lengths import check_options, local_length, longest_length
from .options import Options
from .projection import directions_kept, project_on_weakest
from .timings import timings

Task = fl.Task[Any, Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    """Return a fresh global context [T_g, d]."""
    check_options(task)
    options = task.options
    generator = task.generator("global context")
    context = fl.init_context(task, options.global_length, options.words, generator)
    return {"params": {"context": context}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    """Return a fresh local context and its length.

    The context [L, d] is padded with zeros to L, the greatest length that a local context may have,
    so that the states of all clients have the same shapes.
    """
    options = task.options
    length = local_length(task, client)
    most = longest_length(task.options)
    if options.same_start:
        generator = task.generator("local context")
        context = fl.init_context(task, most, options.words, generator)[:length]
    else:
        generator = task.generator("local context", client)
        context = fl.init_context(task, length, options.words, generator)
    return {
        "local": F.pad(context, (0, 0, 0, most - length)),
        "length": torch.tensor(length, device=context.device),
    }


def text_features(task: Task, contexts: list[Tensor], lengths: list[Tensor]) -> Tensor:
    """Return the text features [K, n, C, d_joint] of the classes under n contexts per client.

    Args:
        contexts: n tensors [K, L, d], whose L may differ.
        lengths: for each of them, the number of tokens of each client's context without padding,
            int64 [K].
    """
    most = max(context.shape[1] for context in contexts)
    padded = [F.pad(context, (0, 0, 0, most - context.shape[1])) for context in contexts]
    counts = torch.stack(lengths, 1)  # [K, n]
    offset = released.eot_offset(task, counts) if task.options.variant == "released" else None
    return task.backbone.text_features(torch.stack(padded, 1), task.data.classes, counts, offset)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Return the loss [K, B] of Eq. 13, and report the cross-entropy under the local context.

    It is the sum of the cross-entropies under the local and the global context and of two terms.
    With text features l (local), g (global) and p (projected local context), they are the mean of
    (l - p)^2 (Eq. 11) and the mean over classes of max(0, alpha - ||l - g||) (Eq. 12).

    Args:
        params: `context`, the global context [K, T_g, d], and `local` [K, L, d].
        received: has `projection` Q [K, d, d], except with `variant: released`.
    """
    clip = task.backbone
    options = task.options
    context = params["context"]
    local = params["local"]
    length = clients.state["length"]

    # the projection of the local context
    if options.variant == "released":
        projected = local @ projection(task, context)
    else:
        projected = local @ received["projection"]  # Eq. 10

    # the features of the classes under each of the three contexts
    full = torch.full_like(length, context.shape[1])
    text = text_features(task, [local, context, projected], [length, full, length])
    local_features, global_features, projected_features = text.unbind(1)  # [K, C, d_joint] each

    # the terms of the loss
    entropy, global_entropy = (
        fl.cross_entropy(clip.logits(batch.features, features), batch.labels)
        for features in (local_features, global_features)
    )
    pull = (local_features - projected_features).square().mean((1, 2))  # [K], Eq. 11
    push = F.relu(options.alpha - (local_features - global_features).norm(dim=-1)).mean(
        1
    )  # [K], Eq. 12
    total = entropy + global_entropy + (pull + push)[:, None]
    return total, {"reported_loss": entropy}


def projection(task: Task, context: Tensor) -> Tensor:
    """Return the projection Q [..., d, d] that follows from global contexts [..., T_g, d]."""
    if task.options.variant == "released":
        return released.projection(context, task.options.rho)
    kept = directions_kept(task.options.variant, task.options.rho, context.shape[-1])
    return project_on_weakest(context, kept)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Train both contexts (Algorithm 1); upload the global one and keep the local one."""
    start = received["params"] | clients.state
    options = task.options
    if options.variant != "released":
        received = {**received, "projection": projection(task, received["params"]["context"])}
    trained = fl.train_locally(
        task, loss, received, clients, params=start, train=("context", "local")
    )
    return fl.make_updates(trained, clients, kept=clients.state)


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    """Return logits [K, B, C] with the local contexts alone; None for the server's model."""
    if clients.is_server_model:
        return None
    state = clients.state
    text = text_features(task, [state["local"]], [state["length"]])[:, 0]  # [K, C, d_joint]
    return task.backbone.logits(batch.features, text)


@fl.hookimpl
def artefact(
    task: Task, server: Tree, cohorts: Iterator[tuple[Tree, Cohort, Batch]]
) -> dict[str, list]:
    """Return the times of the first cohort's projection and training (Table 3)."""
    received, clients, _ = next(cohorts)
    context = received["params"]["context"][0]
    length = int(clients.state["length"][0])
    local = clients.state["local"][0, :length]  # [L, d], without its padding

    @torch.enable_grad()  # evaluation turns gradients off
    def train() -> list[Update]:
        return client_update(task, received, clients)

    return timings(
        decompose=lambda context: projection(task, context),
        train=train,
        context=context,
        local=local,
        clients=len(clients.ids),
    )
