"""Head-Tuning: federated averaging of a linear head on the frozen backbone's class token.

The backbone runs over every image once, and the method reads the feature cache. The paper's FedAvg
is the unweighted mean over the round's clients (PEP-FedPT, Section 3.2); option `weighted` weighs
clients by their training images, as McMahan et al. do.
"""

from torch import Tensor

from fedloom.toolbox import (
    Batch,
    Cohort,
    Tree,
    Update,
    ViTTask,
    cross_entropy,
    hookimpl,
    linear,
    make_updates,
    mean,
    train_locally,
)


@hookimpl
def init_server(task: ViTTask) -> Tree:
    return {"params": {"head": task.backbone.init_head(task.num_classes)}}  # [C, d]


def loss(task: ViTTask, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B] of the heads [K, C, d] on cached features [K, B, d]."""
    return cross_entropy(linear(batch.features, params["head"]), batch.labels)


@hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    return make_updates(train_locally(task, loss, received, clients), clients)


@hookimpl
def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:
    return {"params": mean(updates, task.options.weighted)}


@hookimpl
def predict(task: ViTTask, received: Tree, batch: Batch) -> Tensor:
    return linear(batch.features, received["params"]["head"])  # [K, B, C]
