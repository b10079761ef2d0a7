"""Compute what the authors' code of FedPHA does differently from their paper (`variant: released`).

- The projection uses the thin SVD, whose V has T_g columns. It keeps the columns from
  int((1 - rho) T_g) on, a share rho of them. These columns lie *inside* the row space of the global
  context. The projection is computed again in every step, and the gradient flows through it.
- All texts are tokenised with as many placeholders as the longest context has, local or global. A
  shorter context replaces all placeholders, so its EOT comes earlier; but its feature is still read
  where the EOT of the longest context is. There it finds token 0 or, in the last of the 77
  positions, a zero vector (see the backbone's `text_features`).
"""

from typing import Any

import torch
from torch import Tensor

import fedloom.toolbox as fl

from .lengths import local_length
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
    local = (local_length(start, client) for client in range(task.data.num_clients))
    return max(task.options.global_length, *local) - lengths
