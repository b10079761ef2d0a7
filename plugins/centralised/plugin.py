"""Centralised training: one model on the union of the clients' training images. No federation.

The upper bound of Weng et al. (PFPT, NeurIPS 2024), Figures 1 and 3: their Eq. 3 solved "via
centralizing data". The hooks select one client, whose images are taken to be those of all
participating clients; a round is `epochs` passes over them, and the server takes over what it
trained. Choices:

- The images of clients that are held out are not among them.
- PFPT's figures have the whole model and prompts; `train` has both, and `head`.
- A run counts as many rounds as the methods beside it, each of which sees all training images as
  often as one of theirs in which all clients take part. Bytes are counted as for one client; moving
  the images themselves is not counted.
"""

from dataclasses import replace

import numpy as np
from torch import Tensor

from fedloom.toolbox import (
    Batch,
    Cohort,
    Tree,
    Update,
    ViTTask,
    extend_history,
    history_rows,
    hookimpl,
    init_model,
    make_updates,
    mean,
    model_logits,
    model_loss,
    start_history,
    train_locally,
)


@hookimpl
def init_server(task: ViTTask) -> Tree:
    params = init_model(task)
    if "shared_prompts" not in params:
        return {"params": params}
    return {"params": params, "history": start_history(params["shared_prompts"])}


@hookimpl
def select_clients(available: list[int]) -> list[int]:
    return available[:1]


def pooled(task: ViTTask) -> ViTTask:
    """Return the task in which every client has the images of all participating clients."""
    union = np.sort(np.concatenate([task.data.train[k] for k in task.data.participating]))
    return replace(task, data=replace(task.data, train=[union] * task.data.num_clients))


@hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    return make_updates(train_locally(pooled(task), model_loss, received, clients), clients)


@hookimpl
def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:
    params, history = mean(updates), server.get("history")
    if history is None:
        return {"params": params}
    return {"params": params, "history": extend_history(task, history, params["shared_prompts"])}


@hookimpl
def predict(task: ViTTask, received: Tree, batch: Batch) -> Tensor:
    return model_logits(task, received["params"], batch)  # [K, B, C]


@hookimpl
def artefact(server: Tree) -> dict[str, list]:
    return history_rows(server["history"])
