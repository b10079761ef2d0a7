"""Ditto: a shared model, and a personal one per client that is held to it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML 2021),
Algorithm 1. The server averages a shared model w. Client k answers with a personal model v_k, which
minimises F_k(v_k) + lambda / 2 ||v_k - w||^2.

In its rounds, a client receives w^t. It trains w on its images and uploads it. It also goes on
training v_k, with the gradient step v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)). The paper
trains whole networks. Here a model is shallow prompts and a head, as in FedVPT. Choices:

- v_k is trained for as many epochs as w and with the same optimiser, but with another order of
  images.
- All v_k start with the values of w^0. A client that never trained answers with w.
- lambda is 1 by default. The paper chooses it for each data set.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": fl.shallow_params(task, task.options.prompts)}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"personal": fl.shallow_params(task, task.options.prompts)}  # starts as the shared model


def personal_loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute F_k(v_k) + lambda / 2 ||v_k - w||^2 [K, B], and report F_k(v_k).

    F_k is the cross-entropy. `params` is the personal model v_k, and `received` has w.
    """
    entropy = fl.shallow_loss(task, params, received, clients, batch)
    distance = fl.squared_distance(params, received["params"])  # [K]
    return entropy + task.options.lam / 2 * distance[:, None], {"reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    shared = fl.train_locally(task, fl.shallow_loss, received, clients)
    own = fl.train_locally(
        task, personal_loss, received, clients, params=clients.state["personal"], phase=1
    )
    metrics = {"personal_loss": torch.tensor(own.loss, dtype=torch.float64)}
    return fl.make_updates(shared, clients, state={"personal": own.params}, metrics=metrics)


@fl.hookimpl
def unseen_client_state(task: Task, client: int, received: Tree) -> Tree:
    return {"personal": received["params"]}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.shallow_logits(task, clients.state["personal"], batch)  # the server's model has w
