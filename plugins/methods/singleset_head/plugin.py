"""SingleSet-Head: every client trains its own linear head on the frozen features, alone.

No paper proposes it. It is what remains of a method with personal heads (pFedPG, FedRep, P-PT)
without its prompts and without a server. So a table can show what those two add. Choices:

- A client trains only in the rounds in which it is sampled, so it trains as long as a client of a
  federated method.
- A client that never trained has a head of zeros, which knows no class.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update, ViTTask


@fl.hookimpl
def init_server(task: ViTTask) -> Tree:
    return {"params": {}}  # nothing is sent


@fl.hookimpl
def init_client(task: ViTTask, client: int) -> Tree:
    return {"head": task.backbone.init_head(task.num_classes)}  # [C, d]


def loss(task: ViTTask, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B] of the heads [K, C, d] on cached features [K, B, d]."""
    return fl.cross_entropy(fl.linear(batch.features, params["head"]), batch.labels)


@fl.hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    trained = fl.train_locally(task, loss, received, clients, params=clients.state)
    return fl.make_updates(trained, clients, kept=["head"])


@fl.hookimpl
def predict(task: ViTTask, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # there is no server model
    return fl.linear(batch.features, clients.state["head"])  # [K, B, C]
