"""FedVPT: federated averaging of shallow visual prompts and a linear head (PEP-FedPT, Eq. 1-2).

The prompts enter behind the class token at block 1 and are carried on through all blocks. The
paper's FedAvg is the unweighted mean over the round's clients (Section 3.2); option `weighted`
weighs clients by their training images, as McMahan et al. do.
"""

from torch import Tensor

from fedloom.toolbox import (
    Batch,
    Cohort,
    Tree,
    Update,
    ViTTask,
    hookimpl,
    make_updates,
    mean,
    shallow_logits,
    shallow_loss,
    shallow_params,
    train_locally,
)


@hookimpl
def init_server(task: ViTTask) -> Tree:
    return {"params": shallow_params(task, task.options.prompts)}  # prompts [P, d], head [C, d]


@hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    return make_updates(train_locally(task, shallow_loss, received, clients), clients)


@hookimpl
def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:
    return {"params": mean(updates, task.options.weighted)}


@hookimpl
def predict(task: ViTTask, received: Tree, batch: Batch) -> Tensor:
    return shallow_logits(task, received["params"], batch)  # [K, B, C]
