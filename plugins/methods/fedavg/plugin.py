"""FedAvg: the clients train all weights of the backbone and a linear head, and the server averages.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS
2017), Algorithm 1, for a pretrained ViT as in pFedPG's Tables 1-3. Choices where pFedPG leaves one
open:

- Clients are weighted by their training images. With `weighted: false`, all have equal weights.
- pFedPG reports no learning rate for full fine-tuning. Batch size, epochs and weight decay are
  those of its Section 4.1.3. The learning rate of 0.03, momentum of 0.9 and clipping at 1 are our
  choice.
- With `mu` > 0, each client adds mu/2 times its squared distance from the received parameters to
  its loss (FedProx: Li et al., MLSys 2020, Eq. 2).
- On a ResNet, batch norm uses the statistics of each client's own batches in training. Its running
  statistics are averages over all images of the round's training. The option `statistics` says what
  becomes of them: they are averaged with the weights, or they stay on the client (as in FedBN: Li
  et al., ICLR 2021). A third value uses the backbone's statistics, also in training. A client that
  never trained keeps the backbone's.
- The option `train` freezes all weights but some. For example, `bias$` is BitFit (Ben Zaken et al.,
  ACL 2022). Frozen weights are neither sent nor averaged.
"""

from typing import Any

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.Task[Any, Options]

TRAINED = ("head", "weights")


@fl.hookimpl
def init_server(task: Task) -> Tree:
    params: Tree = {
        "head": task.backbone.init_head(task.num_classes),
        "weights": fl.init_trained_weights(task),
    }
    if _has_statistics(task) and task.options.statistics == "averaged":
        params["statistics"] = task.backbone.init_statistics()
    return {"params": params}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    keeps = _has_statistics(task) and task.options.statistics == "kept"
    return {"statistics": task.backbone.init_statistics()} if keeps else {}


def _has_statistics(task: Task) -> bool:
    """Return True if clients compute running statistics of batch norm (on a ResNet)."""
    return task.options.statistics != "frozen" and hasattr(task.backbone, "init_statistics")


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute the cross-entropy plus mu/2 ||w - w_received||^2 [K, B]. Report the first.

    On a ResNet, also return the moments of the images, from which running statistics follow.
    """
    outcome = fl.model_loss(task, params, received, clients, batch)
    entropy, moments = outcome if isinstance(outcome, tuple) else (outcome, {})  # [K, B]
    if not task.options.mu:
        return entropy, moments
    start = {name: received["params"][name] for name in TRAINED}
    now = {name: params[name] for name in TRAINED}
    penalty = task.options.mu / 2 * fl.squared_distance(now, start)  # [K]
    return entropy + penalty[:, None], {**moments, "reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    trained = fl.train_model(task, received, clients, received["params"] | clients.state, loss)
    return fl.make_updates(trained, clients, kept=tuple(clients.state))


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model and clients.state:
        return None  # only clients have statistics of batch norm
    return fl.model_logits(task, received["params"] | clients.state, batch)  # [K, B, C]
