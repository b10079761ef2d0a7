"""FedPHA's projection on what the global context leaves out, as the paper has it (Eq. 8-10)."""

import torch
from torch import Tensor

ROUNDING = 1e-9  # 1 - rho is not exact in binary: (1 - 0.8) * 20 must be 4


def directions_kept(variant: str, rho: float, width: int) -> int:
    """Return how many of `width` directions the projection keeps.

    Args:
        variant: "paper" for floor((1 - rho) d) (Eq. 9), "algorithm_1" for d minus this number.
        rho: the option `rho`.
        width: d.
    """
    ninth = int((1 - rho) * width + ROUNDING)
    return ninth if variant == "paper" else width - ninth


def project_on_weakest(context: Tensor, kept: int) -> Tensor:
    """Return the projection Q = V_2 V_2^T [..., d, d] on the weakest directions of contexts.

    The directions are the d right singular vectors V of a context [..., T, d], in the order of
    falling singular values. V_2 are the last `kept` of them. If `kept` is 0, Q is zero.

    If a context has fewer than d tokens, the last d - T singular values are zero, and their vectors
    are not unique. They are computed by a full Householder QR of the other T vectors, which is
    deterministic.
    """
    width = context.shape[-1]
    rows = torch.linalg.svd(context, full_matrices=False).Vh  # [..., T, d]
    basis = torch.linalg.qr(rows.mT, mode="complete").Q  # [..., d, d]
    v2 = basis[..., width - kept :]  # [..., d, kept]
    return v2 @ v2.mT
