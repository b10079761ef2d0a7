"""Optimal transport between an image's patches and a class's prompts, by Sinkhorn's iterations."""

import math
from dataclasses import dataclass
from functools import cached_property

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
    # use logarithms if a product of two entries of the kernel could be 0
    logarithms = LARGEST_COST / eps > -math.log(torch.finfo(cost.dtype).tiny) / 2
    if logarithms:
        problems = _Logarithmic(-cost / eps, mass, balanced)
    else:
        problems = _Plain(torch.exp(-cost / eps), mass, balanced)
    u, v = problems.start()

    # the weight of each scaling in the average change of a client, and the clients that still run
    scalings = mask.sum(1) * problems.watched(u, v)[0, 0].numel()  # [K]
    weight = mask[..., None, None] / scalings[:, None, None, None]  # [K, B, 1, 1]
    running = torch.ones(len(cost), 1, 1, 1, dtype=torch.bool, device=cost.device)
    every = ASKED_EVERY[cost.device.type]

    for iteration in range(1, iterations + 1):
        new_u, new_v = problems.scale(v)
        change = problems.change(
            problems.watched(u, v), problems.watched(new_u, new_v), weight
        )  # [K]
        u = torch.where(running, new_u, u)
        v = torch.where(running, new_v, v)
        running = running & (change >= threshold)[:, None, None, None]
        if iteration % every == 0 and not running.any():
            break
    return problems.plan(u, v)


@dataclass(frozen=True)
class _Problems:
    """The transport problems of a batch.

    Attributes:
        kernel: exp(-cost / eps) [..., M, N], or its logarithm.
        mass: see `transport_plan`.
        balanced: see `transport_plan`.
    """

    kernel: Tensor
    mass: float
    balanced: bool

    @property
    def rows(self) -> int:
        """Return M, the number of patches."""
        return self.kernel.shape[-2]

    @property
    def columns(self) -> int:
        """Return N, the number of prompts."""
        return self.kernel.shape[-1]

    def watched(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the scalings whose change stops the iterations: v, or u if `balanced`."""
        return u if self.balanced else v


class _Plain(_Problems):
    """The problems by their kernel exp(-cost / eps) and scalings u and v."""

    @cached_property
    def contiguous_kernel(self) -> Tensor:
        """Return the kernel without gaps in memory, for products, which would copy it each time.

        Costs that come from an einsum are not contiguous.
        """
        return self.kernel.contiguous()

    def start(self) -> tuple[Tensor, Tensor]:
        """Return the first scalings u [..., M] and v [..., N], which are 1."""
        return torch.ones_like(self.kernel[..., 0]), torch.ones_like(self.kernel[..., 0, :])

    def scale(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next u and v, from v.

        u = (1 / M) / (kernel v), at most 1 unless `balanced`; v = (mass / N) / (kernel^T u).
        """
        kernel = self.contiguous_kernel
        full = (kernel @ v[..., None]).squeeze(-1).mul_(self.rows).reciprocal_()
        u = full if self.balanced else full.clamp_(max=1)
        next_v = self.mass / self.columns / (u[..., None, :] @ kernel).squeeze(-2)
        return u, next_v

    def change(self, before: Tensor, after: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted sum [K] of the changes of scalings [K, B, C, M or N]."""
        return ((after - before).abs() * weight).sum((1, 2, 3))

    def plan(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the plans diag(u) kernel diag(v) [..., M, N]."""
        return u[..., None] * self.kernel * v[..., None, :]


class _Logarithmic(_Problems):
    """The problems by the logarithms of kernel, u and v."""

    def start(self) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the first scalings, which are 0."""
        return torch.zeros_like(self.kernel[..., 0]), torch.zeros_like(self.kernel[..., 0, :])

    def scale(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithms of the next u and v, from the logarithm of v."""
        full = -math.log(self.rows) - torch.logsumexp(self.kernel + v[..., None, :], -1)
        u = full if self.balanced else full.clamp(max=0)
        sums = torch.logsumexp(self.kernel + u[..., None], -2)
        return u, math.log(self.mass / self.columns) - sums

    def change(self, before: Tensor, after: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted sum [K] of the changes of the scalings, not of their logarithms.

        Infinity minus infinity counts as an infinite change. Images of weight 0 do not count.
        """
        change = (after.exp() - before.exp()).abs().nan_to_num(nan=math.inf)
        return (change.where(weight > 0, 0) * weight).sum((1, 2, 3))

    def plan(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the plans [..., M, N], not their logarithms."""
        return (u[..., None] + self.kernel + v[..., None, :]).exp()
