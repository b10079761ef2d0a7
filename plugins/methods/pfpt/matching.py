"""PFPT's server summarises the prompts of all clients by a new pool (Eq. 8-14, Algorithm 2).

The prompts of the pool are those candidates to which prompts of clients are assigned. In turns, the
server moves the candidates by gradient ascent on the likelihood L1 + L2 of the uploaded prompts,
and then assigns these anew. The letters are those of the paper: m clients upload n_t prompts w of
width d each; phi are the n candidates; z says to which candidate a prompt is assigned; the networks
g and alpha give the probability that a candidate is used, and its variance.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree

from .networks import network
from .options import Options

Members = tuple[Tensor, Tensor, Tensor]  # the result of `gather_members`


def summarise(options: Options, phi: Tensor, uploaded: Tensor, nets: Tree) -> tuple[Tensor, Tree]:
    """Return the next pool [n', d] and the networks after alternate ascent and assignment (Eq. 11).

    The result does not depend on the order of a client's prompts, not even in the last bit.

    Args:
        phi: the server's pool [n, d].
        uploaded: the prompts that clients send [m, n_t, d].
        nets: the networks of g and alpha.
    """
    clients, each = uploaded.shape[:2]
    device = uploaded.device

    # sort each client's prompts, and take the pool and all different prompts as candidates
    order = [np.lexsort(prompts.T) for prompts in uploaded.cpu().numpy()]
    w = torch.cat([u[torch.from_numpy(o)] for u, o in zip(uploaded, order, strict=True)])
    candidates = torch.cat([phi, w.unique(dim=0)])

    # standardise
    centre = candidates.mean(0)
    scale = candidates.var(0).mean().sqrt().clamp(min=1e-12)
    w = (w - centre) / scale
    candidates = (candidates - centre) / scale

    def costs() -> tuple[np.ndarray, np.ndarray]:
        """Return the costs of Eq. 27 [m, n_t, n], and the change of L2 by a new candidate [n]."""
        alpha, g = parameters(options, nets, candidates)
        opening = clients * F.logsigmoid(-g) * (options.unused_prompts == "free")
        cost = (log_density(w, candidates, alpha) + g).view(clients, each, -1)
        return cost.double().cpu().numpy(), opening.double().cpu().numpy()

    # at first, assign clients only to the server's pool
    cost, _ = costs()
    z = np.stack([linear_sum_assignment(c[:, : len(phi)], maximize=True)[1] for c in cost])

    # in each turn: gradient ascent on the candidates in use, then assignment
    for _ in range(options.iterations):
        used, position = np.unique(z, return_inverse=True)  # z is used[position]
        if options.unused_prompts == "penalised":
            used = np.arange(len(candidates))
            position = z
        used, position = (torch.from_numpy(a.ravel()).to(device) for a in (used, position))
        members = gather_members(w, position, len(used))
        moved, nets = ascend(options, members, candidates[used], nets, clients)
        candidates = candidates.index_copy(0, used, moved)
        before = z
        z = assign(*costs(), z)
        if (z == before).all():
            break
    return candidates[torch.from_numpy(np.unique(z)).to(device)] * scale + centre, nets


def log_density(w: Tensor, phi: Tensor, alpha: Tensor) -> Tensor:
    """Return log N(w_k | phi_i, diag alpha_i) [N, n].

    w [N, d] are prompts, phi [n, d] candidates, and alpha [n, d] the candidates' variances.
    """
    square = w.square() @ alpha.reciprocal().T - 2 * w @ (phi / alpha).T
    square = square + (phi.square() / alpha).sum(-1)
    return -0.5 * (square + alpha.log().sum(-1) + w.shape[-1] * math.log(2 * math.pi))


def gather_members(w: Tensor, z: Tensor, count: int) -> Members:
    """Return statistics of the prompts that are assigned to each of n candidates.

    Args:
        w: the uploaded prompts [N, d].
        z: the number of the candidate to which each prompt is assigned [N].
        count: n.

    Returns:
        The number [n, 1], the sum [n, d] and the sum of squares [n, d] of a candidate's prompts.
    """
    zeros = w.new_zeros(count, w.shape[1])
    ones = torch.ones_like(w[:, :1])
    number = w.new_zeros(count, 1).index_add(0, z, ones)
    return number, zeros.index_add(0, z, w), zeros.index_add(0, z, w.square())


def likelihood(members: Members, phi: Tensor, alpha: Tensor, g: Tensor, clients: int) -> Tensor:
    """Return L1 + L2 (Eq. 13-14), a scalar in float64.

    L1 is the sum over assigned prompts of log N(w | phi_i, diag alpha_i). L2 is the sum over
    candidates of n_i log sigma(g_i) + (m - n_i) log(1 - sigma(g_i)), which equals n_i g_i +
    m log sigma(-g_i). Here n_i is the number of prompts that are assigned to phi_i.

    Args:
        members: n_i and other statistics, as `gather_members` returns them.
        phi: candidates [n, d].
        alpha: their variances [n, d].
        g: logits of their probabilities to be used [n].
        clients: m.
    """
    number, total, squares = members
    square = squares - 2 * total * phi + number * phi.square()
    gauss = -0.5 * (square / alpha + number * (2 * math.pi * alpha).log())
    bernoulli = number[:, 0] * g + clients * F.logsigmoid(-g)
    return gauss.sum(dtype=torch.float64) + bernoulli.sum(dtype=torch.float64)


def parameters(options: Options, nets: Tree, phi: Tensor) -> tuple[Tensor, Tensor]:
    """Return the variances alpha [n, d] and the logits g [n] of candidates phi [n, d].

    alpha is (d / `separation`) (1 + softplus(network(phi))), so at least d / `separation`.
    """
    bound = phi.shape[1] / options.separation
    alpha = bound * (1 + F.softplus(network(phi, nets["alpha"])))
    return alpha, network(phi, nets["g"])[:, 0]


def ascend(
    options: Options, members: Members, phi: Tensor, nets: Tree, clients: int
) -> tuple[Tensor, Tree]:
    """Return the candidates phi [n, d] and networks after gradient ascent on L1 + L2 at fixed z.

    The ascent starts from the mean of each candidate's prompts. The result is the best point of the
    ascent, or the point that was given if that one is better.

    Args:
        members: statistics of the prompts by candidate, as `gather_members` returns them.
        clients: m.
    """

    def value(phi: Tensor, nets: Tree) -> Tensor:
        """Return L1 + L2 of candidates and networks."""
        return likelihood(members, phi, *parameters(options, nets, phi), clients)

    number, total, _ = members
    start = torch.where(number > 0, total / number.clamp(min=1), phi)
    best = value(phi, nets)
    point = {"phi": phi, "nets": nets}
    tree = fl.tensor_map(lambda v: v.clone().requires_grad_(), {"phi": start, "nets": nets})
    optimizer = torch.optim.Adam([v for _, v in fl.leaves(tree)], options.server_lr)
    for step in range(options.steps + 1):
        found = value(**tree)
        better = found.detach() > best  # a tensor: the host does not wait for the answer
        best = torch.where(better, found.detach(), best)
        point = fl.tensor_map(lambda new, old: torch.where(better, new.detach(), old), tree, point)  # noqa: B023
        if step < options.steps:
            optimizer.zero_grad()
            (-found).backward()
            optimizer.step()
    return point["phi"], point["nets"]


def assign(costs: np.ndarray, opening: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the new assignment z [m, n_t] of prompts to candidates (Algorithm 2).

    Each client in turn takes its best candidates, one for each prompt, given what the others use.

    Args:
        costs: the costs of Eq. 27 [m, n_t, n].
        opening: the change of L2 if a candidate is used that no other client uses [n].
        z: the assignment so far [m, n_t].
    """
    z = z.copy()
    users = np.bincount(z.ravel(), minlength=len(opening))
    for t, cost in enumerate(costs):
        users[z[t]] -= 1
        alone = np.where(users == 0, opening, 0)
        z[t] = linear_sum_assignment(cost + alone, maximize=True)[1]
        users[z[t]] += 1
    return z
