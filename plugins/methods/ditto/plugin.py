"""Ditto: a shared model, and a personal one per client that is held to it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML 2021): client k
answers with v_k, which minimises F_k(v_k) + lambda / 2 ||v_k - w||^2, where w is the model that the
server averages. Algorithm 1: in its rounds, a client trains w on its images, and uploads it; and it
goes on with v_k, whose gradient step is v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)), with the
w^t that it received. The paper trains whole networks; here a model is shallow prompts and a head,
as in FedVPT. Choices:

- v_k is trained for as many epochs as w, with the same optimiser; its image order is its own.
- All v_k start as w^0 does. A client that never trained answers with w.
- lambda is 1 by default; the paper chooses it by data set.
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
    return {"personal": fl.shallow_params(task, task.options.prompts)}  # as the server's


def personal_loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy [K, B] plus lambda / 2 times the squared distance to w."""
    entropy = fl.shallow_loss(task, params, received, clients, batch)
    apart = fl.squared_distance(params, received["params"])  # [K]
    return entropy + task.options.lam / 2 * apart[:, None], {"reported_loss": entropy}


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
    return fl.shallow_logits(task, clients.state["personal"], batch)  # w for the server's model
