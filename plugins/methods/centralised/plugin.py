"""Centralised training: one model on the union of the clients' training images. No federation.

This is the upper bound of Weng et al. (PFPT, NeurIPS 2024), Figures 1 and 3: their Eq. 3 solved
"via centralizing data". The hooks select one client, which trains on the images of all
participating clients. A round is `epochs` passes over these images. The server takes over the
trained model. Choices:

- The images of held-out clients are not used.
- PFPT's figures show the whole model and prompts. The option `train` has both, and `head`.
- A run has as many rounds as the federated methods beside it. Each of its rounds sees all training
  images as often as a federated round with all clients would. Bytes are counted as for one client.
  The transfer of the images themselves is not counted.
"""

from dataclasses import replace

import numpy as np
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update, ViTTask


@fl.hookimpl
def init_server(task: ViTTask) -> Tree:
    params = fl.init_model(task)
    if "shared_prompts" not in params:
        return {"params": params}
    return {"params": params, "history": fl.start_history(params["shared_prompts"])}


@fl.hookimpl
def select_clients(available: list[int]) -> list[int]:
    return available[:1]


def with_all_images(task: ViTTask) -> ViTTask:
    """Return the task, in which every client now has the training images of all participants."""
    union = np.sort(np.concatenate([task.data.train[k] for k in task.data.participating]))
    return replace(task, data=replace(task.data, train=[union] * task.data.num_clients))


@fl.hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(
        fl.train_locally(with_all_images(task), fl.model_loss, received, clients), clients
    )


@fl.hookimpl
def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:
    params = fl.mean(updates)
    history = server.get("history")
    if history is None:
        return {"params": params}
    return {"params": params, "history": fl.extend_history(task, history, params["shared_prompts"])}


@fl.hookimpl
def predict(task: ViTTask, received: Tree, batch: Batch) -> Tensor:
    return fl.model_logits(task, received["params"], batch)  # [K, B, C]


@fl.hookimpl
def artefact(server: Tree) -> dict[str, list]:
    return fl.history_rows(server["history"])
