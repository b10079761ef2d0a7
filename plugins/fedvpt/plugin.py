"""FedVPT: shallow visual prompts and a linear head, federated averaging (PEP-FedPT, Eq. 1-2).

The prompts enter at block 1, behind the class token, and are carried on through all blocks. The
paper's FedAvg is the unweighted mean over the round's clients (Section 3.2); option `weighted`
gives McMahan et al.'s.
"""

import torch.nn.functional as F

from fedloom.engine import hookimpl, local_sgd, mean, uploads


@hookimpl
def init_server(task):
    prompts = task.backbone.prompts(task.options.prompts, task.generator("shared prompts"))
    return {"params": {"head": task.backbone.head(task.num_classes), "shared_prompts": prompts}}


def loss(task, params, received, clients, batch):
    scores = task.backbone.prompted(batch.images, params["shared_prompts"], params["head"])
    return F.cross_entropy(scores.mT, batch.labels, reduction="none")


@hookimpl
def client_update(task, received, clients):
    return uploads(local_sgd(task, loss, received, clients), clients)


@hookimpl
def aggregate(task, server, updates):
    return {"params": mean(updates, task.options.weighted)}


@hookimpl
def predict(task, received, clients, batch):
    params = received["params"]
    return task.backbone.prompted(batch.images, params["shared_prompts"], params["head"])
