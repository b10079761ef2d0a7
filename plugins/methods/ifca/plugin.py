"""IFCA: the server has several models, and every client trains the one that fits it best.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning" (NeurIPS 2020), Algorithm 1:

1. The server sends k models theta_1 ... theta_k.
2. A client estimates its cluster, which is the model with the lowest loss on its training images,
   and trains this model.
3. The server averages within clusters (option "model averaging" of the paper).

The paper trains whole networks. Here a model is shallow prompts and a head, as in FedVPT. With
`share_prompts`, clusters have only different heads, and prompts are averaged over all clients.
Section 6 of the paper likewise shares all layers but the last. Choices:

- Clients of a cluster have equal weights. A model that no client chose stays as it is.
- Each model draws its own prompts. Heads start at zero, as in all methods here. This makes the
  first losses of all models equal, and a client draws one of the equal models. With `head: drawn`,
  as in the paper, heads are drawn too, from N(0, 1 / d).
- Every client estimates its cluster again before a test, also a client that never trained. There is
  no server model.
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
    vit = task.backbone
    options = task.options
    shape = (options.clusters, task.num_classes, vit.width)
    heads = torch.zeros(shape)
    if options.head == "drawn":
        heads = torch.randn(shape, generator=task.generator("heads")) / vit.width**0.5
    models = 1 if options.share_prompts else options.clusters
    prompts = [
        vit.init_prompts(options.prompts, task.generator("prompts", j)) for j in range(models)
    ]
    params = {"head": heads.to(vit.device), "shared_prompts": torch.stack(prompts)}
    return {"params": params}  # theta: [k, C, d] and [k, P, d], or [1, P, d] if shared


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"cluster": torch.tensor(0, device=task.backbone.device)}


def cluster_models(received: Tree, cluster: Tensor) -> Tree:
    """Return each client's model, whose number is in `cluster` [K].

    The model is `head` [K, C, d] and `shared_prompts` [K, P, d], out of k received models.
    """
    params = received["params"]
    clients = torch.arange(len(cluster), device=cluster.device)
    shared = params["shared_prompts"].shape[1] == 1
    prompts = params["shared_prompts"][clients, torch.zeros_like(cluster) if shared else cluster]
    return {"head": params["head"][clients, cluster], "shared_prompts": prompts}


@torch.no_grad()
def best_cluster(task: Task, received: Tree, clients: Cohort) -> Tensor:
    """Return the number [K] of the model with the lowest loss on each client's training images.

    If several models have the lowest loss, one of them is drawn.
    """
    count = task.options.clusters
    total = torch.zeros(len(clients), count, device=task.backbone.device)  # [K, k]
    models = [
        cluster_models(received, torch.full((len(clients),), j, device=total.device))
        for j in range(count)
    ]
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        for j, params in enumerate(models):
            losses = fl.cross_entropy(fl.shallow_logits(task, params, batch), batch.labels)
            total[:, j] += losses.where(batch.mask, 0).sum(1)
    # of the models with the lowest loss, take the one with the largest random number
    streams = [task.generator("equal losses", client) for client in clients.ids]
    draws = torch.stack([torch.rand(count, generator=stream) for stream in streams])
    lowest = total == total.min(1, keepdim=True).values
    return draws.to(total).where(lowest, -1).argmax(1)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    cluster = best_cluster(task, received, clients)
    start = cluster_models(received, cluster)
    trained = fl.train_locally(task, fl.shallow_loss, received, clients, params=start)
    state = {"cluster": cluster}
    choice = F.one_hot(cluster, task.options.clusters)  # s_i: [K, k]
    return fl.make_updates(trained, clients, state=state, metrics=state, choice=choice)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    choices = torch.stack([update.payload["choice"] for update in updates]).bool()  # [n, k]
    params = {}
    for name, old in server["params"].items():
        sent = torch.stack([update.payload["params"][name] for update in updates])  # [n, ...]
        if name == "shared_prompts" and task.options.share_prompts:
            params[name] = sent.mean(0, keepdim=True)
            continue
        params[name] = torch.stack(
            [sent[mine].mean(0) if mine.any() else old[j] for j, mine in enumerate(choices.T)]
        )
    return {"params": params}


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    return {"cluster": best_cluster(task, received, clients)}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None
    return fl.shallow_logits(
        task, cluster_models(received, clients.state["cluster"]), batch
    )  # [K, B, C]
