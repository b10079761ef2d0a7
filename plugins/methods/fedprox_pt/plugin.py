"""FedProx-PT: shallow prompts and a linear head; a proximal term keeps clients near the server.

Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), Eq. 2, as a baseline of
Weng et al. (PFPT, NeurIPS 2024). Every client minimises its loss plus mu/2 times its squared
distance from the parameters that it received. With the option `selection` it is FedProx-PT+ of
PFPT's Tables 6-7. Choices where the papers leave one open:

- The distance is over all parameters that the client trains: the head and the prompts, or with
  selection the prompts that it picked. The other prompts of the pool do not change, so this is also
  the distance of the whole pool.
- `variant: released` adds mu/2 times the distance itself, as PFPT's released code does. The norm of
  its gradient is mu/2, however far the client is. At distance zero we take a gradient of zero. (The
  released code leaves the term out in the first round, and in the first step of every epoch.)
- mu is not reported. The default is that of the released code.
- Selection and averaging are those of fedavg_pt. A prompt is averaged over the clients that picked
  it, weighted by training images. A prompt that no client picked stays as it is.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": fl.init_params(task)}


def proximal(task: Task, params: Tree, start: Tree) -> Tensor:
    """Compute the proximal term mu/2 ||w - w_start||^2 [K] of each client (Eq. 2).

    With `variant: released` the norm is not squared.

    Args:
        params: the client's parameters w, {name: [K, ...]}.
        start: the parameters that it received, of the same shapes.
    """
    difference = torch.cat([(params[name] - start[name]).flatten(1) for name in start], 1)  # [K, n]
    if task.options.variant == "released":
        return task.options.mu / 2 * torch.linalg.vector_norm(difference, dim=1)
    return task.options.mu / 2 * difference.square().sum(1)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy plus the proximal term [K, B], and report the cross-entropy."""
    entropy = fl.shallow_loss(task, params, received, clients, batch)  # [K, B]
    penalty = proximal(task, params, received["params"])  # [K]
    return entropy + penalty[:, None], {"reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.train_picked(task, received, clients, loss)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    return {"params": fl.mean_of_picked(server["params"], updates, task.options.weighted)}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.predict_picked(task, received, clients, batch)  # [K, B, C]
