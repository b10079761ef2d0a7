"""FedBABU (Oh et al., ICLR 2022, Algorithm 1): train the body under a head that nobody trains.

The body is prompts. The head is drawn once and the same for all, so that it is never sent. Before a
test every client fine-tunes body and head on its own images, or the head alone (`tuned`).
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    prompts = fl.shallow_params(task, task.options.prompts)["shared_prompts"]
    return {"params": {"shared_prompts": prompts}}  # [P, d]


def client_models(task: Task, received: Tree, clients: Cohort) -> Tree:
    """Return each client's model: the received body and the fixed head, unless fine-tuned."""
    width = task.backbone.width
    draw = torch.randn(task.num_classes, width, generator=task.at(0).generator("fixed head"))
    head = (draw / width**0.5).to(task.backbone.device)  # [C, d]
    return received["params"] | {"head": head.expand(len(clients), -1, -1)} | clients.state


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return the cross-entropy [K, B] of the trained body under the fixed head."""
    return fl.shallow_loss(
        task, client_models(task, received, clients) | params, received, clients, batch
    )


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    names = ("head",) if task.options.tuned == "head" else ("head", "shared_prompts")
    trained = fl.train_locally(
        task, fl.shallow_loss, received, clients, epochs=task.options.tuning_epochs,
        params=client_models(task, received, clients), train=names,
    )  # fmt: skip
    return {name: trained.params[name] for name in names}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.shallow_logits(task, client_models(task, received, clients), batch)
