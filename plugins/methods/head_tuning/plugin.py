"""Head-Tuning: federated averaging of a linear head on the frozen backbone's class token.

The backbone runs over every image once, and the method reads the feature cache. The paper's FedAvg
is the unweighted mean over the round's clients (PEP-FedPT, Section 3.2); option `weighted` weighs
clients by their training images, as McMahan et al. do.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update, ViTTask


@fl.hookimpl
def init_server(task: ViTTask) -> Tree:
    return {"params": {"head": task.backbone.init_head(task.num_classes)}}  # [C, d]


def loss(task: ViTTask, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B] of the heads [K, C, d] on cached features [K, B, d]."""
    return fl.cross_entropy(fl.linear(batch.features, params["head"]), batch.labels)


@fl.hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def predict(task: ViTTask, received: Tree, batch: Batch) -> Tensor:
    return fl.linear(batch.features, received["params"]["head"])  # [K, B, C]
