"""FedOTP: a global and a local context per client, matched with image patches by transport.

Li et al., "Global and Local Prompts Cooperation via Optimal Transport for Federated Learning" (CVPR
2024). The global context is averaged, weighted by training images. The local context never leaves
its client. Equation numbers are the paper's. Choices that the paper leaves open:

- Patches are all tokens of the image tower but the class token. They have unit length.
- The transport plan is computed without gradient and counts as a constant. The logit of a class is
  the scaled similarity of patches and prompts, weighted by its plan.
- `mass` (the authors' TOP_PERCENT) is 0.8 in their script for CIFAR-100. FedPHA's port of FedOTP
  has a mass of 1, and still lets no patch give more than it has. FedOTP's code also has balanced
  transport (OT = "Sinkhorn", `balanced` here). At mass 1 this has the same solution, by other
  iterations.
- `eps` is 0.01 in the authors' script for few shots. There the kernel exp(-cost / eps) would leave
  the range of float32. `transport_plan` then computes with logarithms.
- Each client stops its iterations on its own, independently of the other clients in the batch.
- All clients start with the same local context, as in the authors' code. A client that never
  trained is evaluated with this context. There is no server model.
- The authors' trainer has one optimiser for all clients, which carries the momentum of one client
  to the next. Here every client starts each round without momentum.
"""

from typing import Any

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options
from .transport import transport_plan

Task = fl.Task[Any, Options]


def fresh_context(task: Task, which: str) -> Tensor:
    """Draw the context [L, d] that clients start with; `which` is "global" or "local"."""
    options = task.options
    return fl.init_context(task, options.length, options.words, task.generator(f"{which} context"))


@fl.hookimpl
def init_server(task: Task) -> Tree:
    """Return a fresh global context [L, d]."""
    options = task.options
    if options.balanced and options.mass != 1:
        raise fl.FedLoomError(
            f"fedotp: option balanced moves all mass, but mass is {options.mass}; set it to 1.0"
        )
    return {"params": {"context": fresh_context(task, "global")}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    """Return the local context [L, d], the same for all clients."""
    return {"local": fresh_context(task, "local")}


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Return logits [K, B, C]: scale * sum_mn plan_mn similarity_mn (Eq. 5-8).

    The similarity is the cosine between patch m of the image and context n of the class (global or
    local). The plan moves `mass` from patches to contexts at the cost 1 - similarity.
    """
    clip = task.backbone
    options = task.options
    contexts = torch.stack([params["context"], params["local"]], 1)  # [K, N = 2, L, d]
    text = clip.text_features(contexts, task.data.classes)  # [K, N, C, d_joint]
    similarity = torch.einsum("kbmd,kncd->kbcmn", batch.patches, text)  # [K, B, C, M, N]
    cost = 1 - similarity.detach()
    plan = transport_plan(cost, batch.mask, options.mass, options.eps, balanced=options.balanced)
    return clip.logit_scale * (plan * similarity).sum((-2, -1))  # [K, B, C]


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Train both contexts; upload the global one and keep the local one."""
    start = received["params"] | clients.state
    trained = fl.train_locally(task, loss, received, clients, params=start)
    return fl.make_updates(trained, clients, kept=clients.state)


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    """Return logits [K, B, C] with both contexts; None for the server's model."""
    if clients.is_server_model:
        return None
    return logits(task, received["params"] | clients.state, batch)
