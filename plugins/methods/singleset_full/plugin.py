"""SingleSet-Full: every client fine-tunes its own model, and nothing is sent.

Yang et al. (pFedPG, ICCV 2023), Section 4.2: "trains a model at each client without information
sharing". A client keeps its weights and its head from round to round. Choices:

- A client trains only in the rounds in which it is sampled, so it trains as long as a client of a
  federated method.
- pFedPG reports no learning rate for full fine-tuning. The values are those of fedavg, see there.
- A client that never trained has the pretrained weights and a head of zeros, which knows no class.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": {}}  # nothing is sent


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    head = task.backbone.init_head(task.num_classes)
    return {"head": head, "weights": fl.init_trained_weights(task)}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    trained = fl.train_locally(task, fl.model_loss, received, clients, params=clients.state)
    return fl.make_updates(trained, clients, kept=["head", "weights"])


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # there is no server model
    return fl.model_logits(task, clients.state, batch)  # [K, B, C]
