"""FedPHA's projection on what the global context leaves out, as the paper has it (Eq. 8-10)."""

import torch
from torch import Tensor

ROUNDING = 1e-9  # 1 - rho is not exact in binary: (1 - 0.8) * 20 must be 4


def directions_kept(variant: str, rho: float, width: int) -> int:
    """Return how many of `width` directions the projection keeps.

    Args:
        variant: "paper" for floor((1 - rho) d) (Eq. 9), "algorithm_1" for the rest of them.
    """
    ninth = int((1 - rho) * width + ROUNDING)
    return ninth if variant == "paper" else width - ninth


def project_on_weakest(context: Tensor, kept: int) -> Tensor:
    """Return Q = V_2 V_2^T [..., d, d] of the `kept` weakest directions of contexts [..., T, d].

    V has all d right singular vectors, by falling singular value. A context has fewer tokens than
    directions, so that the last ones all have singular value zero and are not unique: these are the
    last columns of the full Householder QR of the right singular vectors, which is deterministic.
    With `kept` 0 the projection is zero.
    """
    width = context.shape[-1]
    rows = torch.linalg.svd(context, full_matrices=False).Vh  # [..., T, d]
    basis = torch.linalg.qr(rows.mT, mode="complete").Q  # [..., d, d]
    v2 = basis[..., width - kept :]  # [..., d, kept]
    return v2 @ v2.mT
