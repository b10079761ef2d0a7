"""FedAvg-PT: federated averaging of shallow prompts and a linear head.

Weng et al., "Probabilistic Federated Prompt-Tuning with Non-IID and Imbalanced Data" (PFPT, NeurIPS
2024), Eq. 2 and Tables 1-4. With the option `selection` it is FedAvg-PT+ of Tables 6-7: the server
holds a pool of prompts, and each client picks and trains some of them. Choices where the paper
leaves one open:

- A client picks prompts once a round, by the votes of its training images
  (fedloom/toolbox/prompt_pool.py). It uploads the picked prompts with their indices in the pool.
- A prompt of the pool is averaged over the clients that picked it. A prompt that no client picked
  stays as it is. (The released code averages whole pools, so that a prompt which few clients picked
  hardly changes.)
- For an evaluation a client picks prompts again. With the server's model, each image picks its
  prompts.
- Clients are weighted by their training images, as in Eq. 2. With `weighted: false`, all have equal
  weights.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": fl.init_params(task)}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.train_picked(task, received, clients)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    return {"params": fl.mean_of_picked(server["params"], updates, task.options.weighted)}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.predict_picked(task, received, clients, batch)  # [K, B, C]
