"""Say in one line what the method does; then name the paper and the choices that it leaves open.

This template shares prompts by federated averaging, and every client keeps a personal head. The
server takes the mean that method.toml declares as `aggregation`; write a hook `aggregate` for any
other step.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    prompts = task.backbone.init_prompts(task.options.prompts, task.generator("prompts"))  # [P, d]
    return {"params": {"prompts": prompts}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"head": task.backbone.init_head(task.num_classes)}  # [C, d], never uploaded


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the loss [K, B] of every example; `params` are the trained parameters, [K, ...]."""
    logits = task.backbone.forward_prompted(batch.images, params["prompts"], params["head"])
    return fl.cross_entropy(logits, batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = received["params"] | clients.state  # prompts [K, P, d], head [K, C, d]
    trained = fl.train_locally(task, loss, received, clients, params=start)
    return fl.make_updates(trained, clients, kept=["head"])


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # the server has no head, and therefore no model
    prompts = received["params"]["prompts"]
    head = clients.state["head"]
    return task.backbone.forward_prompted(batch.images, prompts, head)  # [K, B, C]
