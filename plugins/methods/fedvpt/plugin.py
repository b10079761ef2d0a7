"""FedVPT: federated averaging of shallow visual prompts and a linear head (PEP-FedPT, Eq. 1-2).

Prompts enter behind the class token at block 1 (Jia et al., VPT, ECCV 2022). The server gives all
clients equal weights, as in the paper's Section 3.2. The option `weighted` weights them by training
images.
"""

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": fl.shallow_params(task, task.options.prompts)}  # prompts [P, d], head [C, d]


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, fl.shallow_loss, received, clients), clients)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return fl.shallow_logits(task, received["params"], batch)  # [K, B, C]
