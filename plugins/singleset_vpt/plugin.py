"""SingleSet-VPT: every client tunes prompts and a head of its own, and nothing is sent.

Yang et al. (pFedPG, ICCV 2023), Section 4.2: "each client independently applies visual prompt
tuning to learn prompts at the input embedding space" (Jia et al., ECCV 2022). Choices:

- Training values are those of pFedPG's own method (Section 4.1.3), with as many prompts.
- A client trains in the rounds in which it is sampled, as long as one of a federated method does.
- All clients start with the same prompts; one that never trained has those and a head of zeros.
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
    shallow_logits,
    shallow_loss,
    shallow_params,
    train_locally,
)


@hookimpl
def init_server(task: ViTTask) -> Tree:
    return {}


@hookimpl
def init_client(task: ViTTask, client: int) -> Tree:
    return shallow_params(task, task.options.prompts)  # prompts [P, d], head [C, d]


@hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    trained = train_locally(task, shallow_loss, received, clients, params=clients.state)
    return make_updates(trained, clients, kept=["head", "shared_prompts"])


@hookimpl
def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:
    return server


@hookimpl
def predict(task: ViTTask, received: Tree, clients: Cohort, batch: Batch) -> Tensor | None:
    if clients.is_server_model:
        return None  # there is none
    return shallow_logits(task, clients.state, batch)  # [K, B, C]
