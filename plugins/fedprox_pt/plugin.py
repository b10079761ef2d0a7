"""FedProx-PT: shallow prompts and a linear head; clients are held near the server's.

Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), Eq. 2, as a baseline of
Weng et al. (PFPT, NeurIPS 2024): every client minimises its loss plus mu/2 times its squared
distance from what it received. With option `selection` it is FedProx-PT+ of PFPT's Tables 6-7.
Where the papers leave a choice open:

- The distance is over all that the client trains: the head, and with selection the prompts that it
  picked. Those it did not pick stay where they are, so the distance is also that of the whole pool.
- `variant: released` takes mu/2 times the distance itself, as PFPT's released code does. Its
  gradient has norm mu/2 however far the client is; at distance zero we take zero. (The released
  code leaves the term out in the first round, and in the first step of every epoch.)
- mu is not reported; the default is the released code's.
- Selection and averaging as in fedavg_pt: a prompt is averaged over the clients that picked it,
  weighted by training images, and kept if nobody did.
"""

import torch
import torch.nn.functional as F

from fedloom.engine import (
    first_prompts,
    for_client_or_image,
    hookimpl,
    local_sgd,
    mean_of_picked,
    pick,
    uploads,
)


@hookimpl
def init_server(task):
    head, prompts = task.backbone.head(task.num_classes), first_prompts(task)
    return {"params": {"head": head, "shared_prompts": prompts}}


def proximal(task, params, start):
    """mu/2 times how far each client is from its start, squared or not [K]."""
    apart = torch.cat([(params[name] - start[name]).flatten(1) for name in start], 1)  # [K, n]
    if task.options.variant == "released":
        return task.options.mu / 2 * torch.linalg.vector_norm(apart, dim=1)
    return task.options.mu / 2 * apart.square().sum(1)


def loss(task, params, received, clients, batch):
    scores = task.backbone.prompted(batch.images, params["shared_prompts"], params["head"])
    near = proximal(task, params, received["params"])
    return F.cross_entropy(scores.mT, batch.labels, reduction="none") + near[:, None]


@hookimpl
def client_update(task, received, clients):
    received, places = pick(task, received, clients, task.options.prompts)
    return uploads(local_sgd(task, loss, received, clients), clients, **places)


@hookimpl
def aggregate(task, server, updates):
    return {"params": mean_of_picked(server["params"], updates, task.options.weighted)}


@hookimpl
def predict(task, received, clients, batch):
    pool, head = received["params"]["shared_prompts"], received["params"]["head"]
    prompts = for_client_or_image(task, clients, batch, pool, task.options.prompts)
    return task.backbone.prompted(batch.images, prompts, head)
