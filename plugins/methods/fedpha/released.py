"""What the authors' code of FedPHA computes otherwise than their paper (`variant: released`).

- The projection is that of the thin V, T_g columns, of which it keeps all from int((1 - rho) T_g)
  on: a share rho of them. They lie *inside* the row space of the global context. It is computed
  anew in every step, and the gradient flows through it.
- All texts are tokenised with as many placeholders as the longest context has, local or global. A
  shorter context takes the place of all of them, but its feature is read where the EOT would stand
  behind the longest: as many positions behind its own EOT as it is shorter. Token 0 is there,
  and zero vectors in the last of the 77 places (see the backbone's `text_features`).
"""

from typing import Any

import torch
from torch import Tensor

import fedloom.toolbox as fl

from .lengths import length_of
from .options import Options

Task = fl.Task[Any, Options]


def projection(context: Tensor, rho: float) -> Tensor:
    """Return the projection Q = V_2 V_2^T [..., d, d] of contexts [..., T, d].

    V_2 are the right singular vectors of the thin SVD from number int((1 - rho) T) on.
    """
    v = torch.linalg.svd(context, full_matrices=False).Vh.mT  # [..., d, T]
    v2 = v[..., int((1 - rho) * context.shape[-2]) :]
    return v2 @ v2.mT


def eot_offset(task: Task, lengths: Tensor) -> Tensor:
    """Return the number of positions by which a text's feature is read behind its EOT.

    It is the length of the longest context of all clients minus the length of the text's context.

    Args:
        lengths: numbers of tokens of n contexts of each client, int64 [K, n].

    Returns:
        int64 [K, n].
    """
    start = task.at(0)  # lengths are drawn before round 1
    local = (length_of(start, client) for client in range(task.data.num_clients))
    return max(task.options.global_length, *local) - lengths
