"""FedPR: prompts are updated in the approximate null space of the last round's global prompts.

Feng et al., "Learning Federated Visual Prompt in Null Space for MRI Reconstruction" (CVPR 2023), as
the classification baseline of SGPT and PEP-FedPT: shallow prompts and a head. Every step of the
prompts is multiplied by B = U U^T / ||U U^T||_F. The columns of U are right singular vectors of P^T
P, where P are the global prompts. The vectors of the 20% largest singular values are left out.
Choices where the paper leaves one open, or which come from its released code:

- The whole step of the optimiser is projected, not the gradient. The global prompts are those that
  the client received, from the last round. In round 1 there are none, and nothing is projected.
- The rank of P^T P is at most the number of prompts. If there are fewer prompts than 20% of d, then
  the last of the directions to leave out are not unique, because they lie in a null space. They are
  those that LAPACK returns, which are the same for all clients of a round. The vectors are taken
  from the SVD of the prompts themselves, which has the same right singular vectors.
- The norm of U U^T is the square root of the number of directions. At d = 768, steps are 25 times
  shorter than in FedVPT.
- The paper does not train the head. Here it is trained without projection.
- Clients are weighted by their training images, as in the released code. With `weighted: false`,
  all have equal weights.
- SGPT and PEP-FedPT do not report how they train it. The training options are those of PEP-FedPT's
  other methods. (The paper's own code uses Adam.)
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": fl.shallow_params(task, task.options.prompts)}  # prompts [P, d], head [C, d]


def projector(prompts: Tensor, dropped_share: float) -> Tensor:
    """Compute B = U U^T / ||U U^T||_F [d, d] from the global prompts [P, d].

    The columns of U are the right singular vectors of the prompts, without the `dropped_share` of
    the largest singular values.
    """
    directions = torch.linalg.svd(prompts, full_matrices=True).Vh  # [d, d], one per row
    remaining = directions[int(dropped_share * len(directions)) :]
    projection = remaining.mT @ remaining  # U U^T
    return projection / torch.linalg.matrix_norm(projection)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    project = {}
    if task.round > 1:
        prompts = received["params"]["shared_prompts"][0]  # [P, d], the same for all clients
        project["shared_prompts"] = projector(prompts, task.options.dropped_share)
    trained = fl.train_locally(task, fl.shallow_loss, received, clients, project=project)
    return fl.make_updates(trained, clients)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return fl.shallow_logits(task, received["params"], batch)  # [K, B, C]
