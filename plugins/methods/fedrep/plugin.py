"""FedRep: a body that all clients share, and a head for every client.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning" (ICML 2021),
Algorithm 1. In each round, a client

1. fits its head to the received body, for several epochs;
2. trains the body under this head;
3. uploads only the body.

Choices where the papers leave one open:

- pFedPG's rows train the whole ViT. The option `train` freezes all weights but some, or trains
  prompts before a frozen ViT.
- The number of epochs of the body is that of `training`, as in pFedPG. The paper has ten epochs of
  the head and, depending on the dataset, one or five of the body. pFedPG does not say how many it
  has. Momentum, weight decay and clipping are those of fedavg.
- Heads start at zero. Before a test, every client fits its head to the body again, for
  `head_epochs` epochs. The paper says this of new clients. The others do it because the body has
  changed since their last round. The released code does it only before its last test, for at least
  ten epochs.
- The training loss that is reported is the mean over all steps of a round, including those of the
  head.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Trained, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    body = fl.init_body(task)  # phi
    if not body:
        raise fl.FedLoomError("fedrep: option train: a head alone has no body to share")
    return {"params": body}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"head": task.backbone.init_head(task.num_classes)}  # h_i: [C, d]


def fit_heads(task: Task, received: Tree, clients: Cohort, phase: int) -> Trained:
    """Train the clients' heads on the received body, which stays as it is."""
    return fl.train_locally(
        task,
        fl.model_loss,
        received,
        clients,
        params=received["params"] | clients.state,
        train=("head",),
        epochs=task.options.head_epochs,
        phase=phase,
    )


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    fitted = fit_heads(task, received, clients, phase=0)
    body = tuple(received["params"])
    trained = fl.train_locally(
        task, fl.model_loss, received, clients, params=fitted.params, train=body, phase=1
    )
    return fl.make_updates(trained, clients, earlier=[fitted], kept=["head"])


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    return {"head": fit_heads(task, received, clients, phase=2).params["head"]}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # a body without a head
    return fl.model_logits(task, received["params"] | clients.state, batch)  # [K, B, C]
