"""`variant: paper`: prompts of a pool, a linear head, and matching by L1 + L2 (Algorithm 1)."""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .matching import summarise
from .networks import init_nets
from .options import Options

Task = fl.ViTTask[Options]


def init_head(task: Task) -> Tensor:
    """Return a linear head [C, d] of zeros."""
    return task.backbone.init_head(task.num_classes)


def init_state(task: Task, params: Tree) -> Tree:
    """Return the server's parameters, and the networks of g and alpha."""
    return {"params": params, "nets": init_nets(task)}


def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Pick prompts from the pool, train them and the head, and return the updates."""
    params = received["params"] | clients.state  # a personal head is the client's own
    pool = params["shared_prompts"]  # [K, n, d]
    picked = fl.gather_prompts(pool, fl.top_prompts(task, clients, pool, task.options.prompts))
    params = params | {"shared_prompts": picked}  # [K, n_t, d]
    trained = fl.train_locally(task, fl.shallow_loss, received, clients, params=params)
    return fl.make_updates(trained, clients, kept=clients.state)


def next_pool(task: Task, server: Tree, updates: list[Update]) -> tuple[Tensor, Tree]:
    """Return the summarising prompts [n', d] of all uploads, and the networks (Eq. 11)."""
    uploaded = torch.stack([update.payload["params"]["shared_prompts"] for update in updates])
    phi = server["params"]["shared_prompts"]  # [n, d]
    pool, nets = summarise(task.options, phi, uploaded, server["nets"])
    return pool, {"nets": nets}


def logits(task: Task, params: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return logits [K, B, C] with the prompts that each client, or each image, picks."""
    pool = params["shared_prompts"]
    count = task.options.prompts
    prompts = fl.prompts_for_prediction(task, clients, batch, pool, count)
    return fl.shallow_logits(task, params | {"shared_prompts": prompts}, batch)
