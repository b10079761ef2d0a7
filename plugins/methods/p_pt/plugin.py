"""P-PT: every client keeps its prompts and shares the head.

PEP-FedPT compares with this baseline without defining it. Here, prompts are shallow as in FedVPT,
and stay on the client from round to round. The head is averaged, unweighted as in the paper's
FedAvg. With the option `weighted`, it is weighted by training images. All clients start with the
same prompts. A client that never trained is evaluated with these.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": {"head": task.backbone.init_head(task.num_classes)}}  # [C, d]


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    generator = task.generator("shared prompts")  # no client among the ids: the same for all
    return {"prompts": task.backbone.init_prompts(task.options.prompts, generator)}  # [P, d]


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B] with prompts [K, P, d] and heads [K, C, d]."""
    logits = task.backbone.forward_prompted(batch.images, params["prompts"], params["head"])
    return fl.cross_entropy(logits, batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = received["params"] | clients.state
    trained = fl.train_locally(task, loss, received, clients, params=start)
    return fl.make_updates(trained, clients, kept=["prompts"])


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # without a client there are no prompts
    prompts = clients.state["prompts"]
    head = received["params"]["head"]
    return task.backbone.forward_prompted(batch.images, prompts, head)  # [K, B, C]
