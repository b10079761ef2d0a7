"""One line that says what the method does; then the paper and the choices it leaves open.

This one gives every client a head of its own and shares the prompts: change what you need.
"""

import torch.nn.functional as F

from fedloom.engine import hookimpl, local_sgd, mean, uploads


@hookimpl
def init_server(task):
    return {"params": {"prompts": task.backbone.prompts(task.options.prompts, task.generator("p"))}}


@hookimpl
def init_client(task, client):
    return {"head": task.backbone.head(task.num_classes)}  # [C, d], never uploaded


def loss(task, params, received, clients, batch):
    scores = task.backbone.prompted(batch.images, params["prompts"], params["head"])  # [K, B, C]
    return F.cross_entropy(scores.mT, batch.labels, reduction="none")


@hookimpl
def client_update(task, received, clients):
    start = received["params"] | clients.state  # [K, ...] each
    trained = local_sgd(task, loss, received, clients, params=start)
    return uploads(trained, clients, kept=["head"])


@hookimpl
def aggregate(task, server, updates):
    return {"params": mean(updates, weighted=True)}


@hookimpl
def predict(task, received, clients, batch):
    if clients.nobody:
        return None  # no head, no model
    prompts = received["params"]["prompts"]
    return task.backbone.prompted(batch.images, prompts, clients.state["head"])
