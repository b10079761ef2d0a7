"""Optimal transport between an image's patches and a class's prompts, by Sinkhorn's iterations."""

import math

import torch
from torch import Tensor

LARGEST_COST = 2.0  # 1 - cosine
# The number of iterations after which the host checks whether all clients have stopped. On a GPU
# the check has to wait for results. Iterations after the last client has stopped change nothing.
ASKED_EVERY = {"cpu": 1, "cuda": 10}


@torch.no_grad()
def transport_plan(
    cost: Tensor,
    mask: Tensor,
    mass: float,
    eps: float,
    iterations: int = 100,
    threshold: float = 1e-3,
    *,
    balanced: bool = False,
) -> Tensor:
    """Return the entropic plans [K, B, C, M, N] that move `mass` to the prompts (FedOTP, Eq. 5-8).

    A plan is diag(u) exp(-cost / eps) diag(v). The iterations change the scalings u [M] and v [N]
    in turn. Each of the N prompts receives mass / N. There are two kinds of transport:

    - With `balanced` false ("COT" in FedOTP's code), each of the M patches gives at most 1 / M.
    - With `balanced` true ("Sinkhorn" there), each patch gives exactly 1 / M. All mass then moves,
      so `mass` must be 1.

    At mass 1 both have the same solution. Their iterates differ, and so do their results after few
    iterations.

    The solutions are those of POT's `ot.partial.entropic_partial_wasserstein` and `ot.sinkhorn`.
    Here all problems of a batch are solved together, with the authors' iterations and stopping
    rule. If `eps` is so small that the kernel exp(-cost / eps) or the scalings would leave the
    range of floating-point numbers, the iterations work with logarithms.

    Args:
        cost: [K, B, C, M, N], 1 - cosine of M patches and N prompts, from 0 to 2.
        mask: bool [K, B], false for images that only fill up a batch.
        mass: share of an image's patches that is moved, in (0, 1].
        eps: weight of the entropy.
        iterations: largest number of iterations.
        threshold: a client's iterations stop when its scalings v (balanced: u) change by less than
            this, on average over all images and classes.
    """
    # the kernel, and scalings of one; or the logarithms of all
    rows, columns = cost.shape[-2:]
    logarithms = LARGEST_COST / eps > -math.log(torch.finfo(cost.dtype).tiny) / 2
    kernel = -cost / eps if logarithms else torch.exp(-cost / eps)  # [K, B, C, M, N]
    u = torch.ones_like(cost[..., 0])  # [K, B, C, M]
    v = torch.ones_like(cost[..., 0, :])  # [K, B, C, N]
    # Costs that come from an einsum are not contiguous, and every product would copy them.
    factor = kernel if logarithms else kernel.contiguous()
    if logarithms:
        u = u.log()
        v = v.log()

    # the weight of each scaling in the average change of a client, and the clients that still run
    real = mask[..., None, None]  # [K, B, 1, 1]
    scalings = mask.sum(1) * cost.shape[2] * (rows if balanced else columns)
    weight = real / scalings[:, None, None, None]
    running = torch.ones(len(cost), 1, 1, 1, dtype=torch.bool, device=cost.device)
    every = ASKED_EVERY[cost.device.type]

    # the iterations
    for number in range(1, iterations + 1):
        new_u, new_v = (_scale_logarithms if logarithms else _scale)(factor, v, mass, balanced)
        before, after = (u, new_u) if balanced else (v, new_v)
        if logarithms:
            before = before.exp()
            after = after.exp()
        step = (after - before).abs()
        if logarithms:  # infinity minus infinity counts as an infinite change
            step = step.nan_to_num(nan=math.inf).where(real, 0)
        change = (step * weight).sum((1, 2, 3))  # [K]
        u = torch.where(running, new_u, u)
        v = torch.where(running, new_v, v)
        running = running & (change >= threshold)[:, None, None, None]
        if number % every == 0 and not running.any():
            break

    # the plans
    if logarithms:
        return (u[..., None] + kernel + v[..., None, :]).exp()
    return u[..., None] * kernel * v[..., None, :]


def _scale(kernel: Tensor, v: Tensor, mass: float, balanced: bool) -> tuple[Tensor, Tensor]:
    """Return the next scalings u [..., M] and v [..., N] of a kernel [..., M, N], from v.

    u = (1 / M) / (kernel v), which is at most 1 unless `balanced`; v = (mass / N) / (kernel^T u).
    """
    rows, columns = kernel.shape[-2:]
    full = (kernel @ v[..., None]).squeeze(-1).mul_(rows).reciprocal_()
    new_u = full if balanced else full.clamp_(max=1)
    new_v = mass / columns / (new_u[..., None, :] @ kernel).squeeze(-2)
    return new_u, new_v


def _scale_logarithms(
    log_kernel: Tensor, log_v: Tensor, mass: float, balanced: bool
) -> tuple[Tensor, Tensor]:
    """Return the logarithms of what `_scale` returns, from logarithms of kernel and v."""
    rows, columns = log_kernel.shape[-2:]
    full = -math.log(rows) - torch.logsumexp(log_kernel + log_v[..., None, :], -1)
    new_u = full if balanced else full.clamp(max=0)
    new_v = math.log(mass / columns) - torch.logsumexp(log_kernel + new_u[..., None], -2)
    return new_u, new_v
