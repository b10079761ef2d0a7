"""FedRep (Collins et al., ICML 2021, Algorithm 1): a shared body, and a head for every client.

The body is prompts, the head linear. A client first fits its head to the received body
(`head_epochs`), then trains the body under that head, and uploads the body alone. Before a test
every client fits its head to the body again, those too that never trained.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    prompts = fl.shallow_params(task, task.options.prompts)["shared_prompts"]
    return {"params": {"shared_prompts": prompts}}  # phi: [P, d]


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"head": task.backbone.init_head(task.num_classes)}  # h_i: [C, d]


def fit_heads(task: Task, received: Tree, clients: Cohort, phase: int) -> fl.Trained:
    """Train the clients' heads on the received body, which does not change."""
    params = received["params"] | clients.state
    epochs = task.options.head_epochs
    return fl.train_locally(
        task, fl.shallow_loss, received, clients,
        params=params, train=("head",), epochs=epochs, phase=phase,
    )  # fmt: skip


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    fitted = fit_heads(task, received, clients, phase=0)
    body = ("shared_prompts",)
    trained = fl.train_locally(
        task, fl.shallow_loss, received, clients, params=fitted.params, train=body, phase=1
    )
    return fl.make_updates(trained, clients, earlier=[fitted], kept=["head"])


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    return {"head": fit_heads(task, received, clients, phase=2).params["head"]}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # a body without a head
    return fl.shallow_logits(task, received["params"] | clients.state, batch)
