"""SingleSet-VPT: every client tunes its own prompts and head, and nothing is sent.

Yang et al. (pFedPG, ICCV 2023), Section 4.2: "each client independently applies visual prompt
tuning to learn prompts at the input embedding space" (Jia et al., ECCV 2022). Choices:

- Training options and the number of prompts are those of pFedPG's own method (Section 4.1.3).
- A client trains only in the rounds in which it is sampled, so it trains as long as a client of a
  federated method.
- All clients start with the same prompts. A client that never trained has these prompts and a head
  of zeros.
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
    return fl.shallow_params(task, task.options.prompts)  # prompts [P, d], head [C, d]


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    trained = fl.train_locally(task, fl.shallow_loss, received, clients, params=clients.state)
    return fl.make_updates(trained, clients, kept=["head", "shared_prompts"])


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # there is no server model
    return fl.shallow_logits(task, clients.state, batch)  # [K, B, C]
