"""APFL of prompts, as PFLlib trains it: a shared and a personal model (Deng et al., Algorithm 1).

Both are prompts and a head. After local training a client mixes the shared model into its own, by
which it predicts. PFLlib also adapts the share `alpha` in every step; here it is an option.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": {"shared": fl.shallow_params(task, task.options.prompts)}}


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"own": fl.shallow_params(task, task.options.prompts)}


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return the sum of both models' cross-entropies [K, B]; they share no parameter."""
    shared, own = (
        fl.shallow_loss(task, params[name], received, clients, batch) for name in ("shared", "own")
    )
    return shared + own


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    start = received["params"] | clients.state
    trained = fl.train_locally(
        task, loss, received, clients, params=start, clip_apart=("shared", "own")
    )
    shared = trained.params["shared"]
    own = trained.params["own"]
    alpha = task.options.alpha
    mixed = {name: (1 - alpha) * shared[name] + alpha * own[name] for name in own}
    return fl.make_updates(trained, clients, kept=["own"], state={"own": mixed})


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    model = received["params"]["shared"] if clients.is_server_model else clients.state["own"]
    return fl.shallow_logits(task, model, batch)  # [K, B, C]
