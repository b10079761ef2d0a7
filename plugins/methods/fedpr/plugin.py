"""FedPR: prompts are updated in the approximate null space of the last round's global prompts.

Feng et al., "Learning Federated Visual Prompt in Null Space for MRI Reconstruction" (CVPR 2023), as
the classification baseline of SGPT and PEP-FedPT: shallow prompts and a head. Every step of the
prompts is multiplied by B = U U^T / ||U U^T||_F. The columns of U are the right singular vectors of
the global prompts' P^T P without those of the 20% largest singular values. Choices where the paper
leaves one open, or which come from its released code:

- The optimiser's whole step is projected, not the gradient. The global prompts that a client
  received are those that the last round made; in round 1 there are none, and nothing is projected.
- P^T P has rank P at most, so that where P is less than 20% of d the last of the dropped directions
  are any of a null space: those that LAPACK gives, the same for every client of a round. The
  vectors are taken from the SVD of P itself, which has the same.
- The norm of U U^T is the root of the number of directions: at d = 768 steps are 25 times shorter
  than in FedVPT.
- The head, which the paper does not train, is trained without projection.
- Clients are weighed by their training images, as released; option `weighted` turns that off.
- SGPT and PEP-FedPT do not report how they train it. The training options are those of PEP-FedPT's
  other methods (its own code: Adam).
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
    """Compute B [d, d] from global prompts [P, d], without that share of the directions."""
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
