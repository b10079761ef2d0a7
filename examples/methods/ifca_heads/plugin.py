"""IFCA (Ghosh et al., NeurIPS 2020, Algorithm 1): every client trains the model that fits it best.

The models are linear heads on cached features. Each client estimates its cluster, the model of the
lowest loss on its training images, and trains that one; the server averages within clusters. Before
a test a client estimates its cluster anew, also one that never trained.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    shape = task.options.clusters, task.num_classes, task.backbone.width
    draw = torch.randn(shape, generator=task.generator("models")) / task.backbone.width**0.5
    return {"params": {"heads": draw.to(task.backbone.device)}}  # theta_j: [M, C, d]


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"cluster": torch.tensor(0, device=task.backbone.device)}


def best_cluster(task: Task, received: Tree, clients: Cohort) -> Tensor:
    """Return the number [K] of the model with the lowest loss on each client's training images."""
    heads = received["params"]["heads"]  # [K, M, C, d]
    total = torch.zeros_like(heads[..., 0, 0])  # [K, M]
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        for j, head in enumerate(heads.unbind(1)):
            losses = fl.cross_entropy(fl.linear(batch.features, head), batch.labels)
            total[:, j] += losses.where(batch.mask, 0).sum(1)
    return total.argmin(1)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return the cross-entropy [K, B] of the chosen heads [K, C, d]."""
    return fl.cross_entropy(fl.linear(batch.features, params["head"]), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    cluster = best_cluster(task, received, clients)
    params = {"head": received["params"]["heads"][range(len(clients)), cluster]}  # [K, C, d]
    trained = fl.train_locally(task, loss, received, clients, params=params)
    choice = F.one_hot(cluster, task.options.clusters)  # s_i: [K, M]
    state = {"cluster": cluster}
    return fl.make_updates(trained, clients, state=state, metrics=state, choice=choice)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    heads = server["params"]["heads"].clone()
    for j in range(len(heads)):
        mine = [u.payload["params"]["head"] for u in updates if u.payload["choice"][j]]
        if mine:
            heads[j] = torch.stack(mine).mean(0)
    return {"params": {"heads": heads}}


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    return {"cluster": best_cluster(task, received, clients)}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    heads = received["params"]["heads"][range(len(clients)), clients.state["cluster"]]
    return None if clients.is_server_model else fl.linear(batch.features, heads)
