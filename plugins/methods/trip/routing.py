"""Routing without parameters: patches of an image are clustered, and each cluster gets an expert.

As in the released code: clusters by k-means with a capacity, experts by a one-to-one matching.
"""

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

ITERATIONS = 100
TOLERANCE = 1e-4  # an image is done if its centroids move by less than this on average
STEP = 1e-4  # change of a cluster's price for each patch that it has room for


def capacities(patches: int, clusters: int, factor: float) -> Tensor:
    """Return the numbers of patches that the clusters may take [E].

    Each may take floor(factor floor(T / E)) of the T `patches`. The first T mod E clusters may take
    one more.
    """
    each = torch.full((clusters,), float(patches // clusters * factor)).floor().long()
    return each + (torch.arange(clusters) < patches % clusters)


def assign(prices: Tensor, room: Tensor) -> Tensor:
    """Return the cluster of each patch [N, T], from 0; E for a patch without a cluster.

    A patch wants the cluster with the lowest price. It gets no cluster if this one is full. Patches
    are served in the order of these lowest prices.

    Args:
        prices: the price of each patch in each cluster [N, T, E].
        room: number of patches that each cluster takes [E].
    """
    cheapest, wanted = prices.min(-1)  # [N, T]
    order = cheapest.sort(dim=1, stable=True).indices
    sorted_wanted = wanted.gather(1, order)
    chosen = F.one_hot(sorted_wanted, len(room))  # [N, T, E]
    rank = (chosen.cumsum(1) * chosen).sum(-1)  # 1 for the first patch that wants a cluster
    taken = torch.where(rank <= room[sorted_wanted], sorted_wanted, len(room))
    return torch.empty_like(wanted).scatter_(1, order, taken)


def cluster(patches: Tensor, first: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster the patches of each image by k-means, where full clusters refuse patches.

    An empty cluster moves to the patch that is farthest from all centroids.

    Args:
        patches: [N, T, d] of N images.
        first: positions of the patches that are the first centroids [E].
        room: number of patches that each cluster takes [E].

    Returns:
        The centroids [N, E, d] and the sizes [N, E] of the clusters.
    """
    # before the first iteration, all clusters have the same price
    count = len(room)
    centroids = patches[:, first].clone()
    extra = patches.new_zeros(len(patches), count)  # price of a cluster, added to distances
    sizes = torch.zeros_like(extra)
    active = torch.arange(len(patches), device=patches.device)  # images that have not converged

    for _ in range(ITERATIONS):
        x = patches[active]
        known = centroids[active]
        distances = torch.cdist(x, known)  # [n, T, E]
        assigned = assign(distances + extra[active, None], room)
        members = F.one_hot(assigned, count + 1)[..., :count].to(x)  # [n, T, E]
        sizes[active] = members.sum(1)

        # the mean of each cluster's patches is its next centroid
        empty = sizes[active] == 0
        moved = members.mT @ x / sizes[active].clamp(min=1)[..., None]
        farthest = distances.amin(-1).argmax(1)  # [n]
        lonely = x[torch.arange(len(x), device=x.device), farthest]  # [n, d]
        moved = torch.where(empty[..., None], lonely[:, None], moved)

        # a cluster with room left becomes cheaper
        price = extra[active] + STEP * (sizes[active] - room.to(x))
        extra[active] = torch.where(empty, torch.zeros_like(price), price)

        # images whose centroids hardly move are done
        going = (moved - known).norm(dim=-1).mean(-1) >= TOLERANCE
        centroids[active[going]] = moved[going]
        active = active[going]
        if not len(active):
            break
    return centroids, sizes


def expert_shares(patches: Tensor, keys: Tensor, first: Tensor, factor: float) -> Tensor:
    """Return the share of each expert [N, E] in each of N images.

    Clusters are matched one to one with experts, so that the sum of the cosines between centroids
    and keys is largest. The share of an expert is the number of its cluster's patches, divided by
    the number of patches in all clusters.

    Args:
        patches: [N, T, d].
        keys: the experts' keys [E, d].
        first: positions of the patches that are the first centroids, one for each cluster.
        factor: capacity of a cluster, in multiples of an equal share of all patches.
    """
    room = capacities(patches.shape[1], len(first), factor).to(patches.device)
    centroids, sizes = cluster(patches, first, room)
    cosines = F.normalize(centroids, dim=-1) @ F.normalize(keys, dim=-1).mT
    matched = [linear_sum_assignment(c, maximize=True)[1] for c in cosines.cpu().numpy()]

    # the expert of each cluster [N, E]
    experts = torch.tensor(np.array(matched), device=sizes.device)
    shares = sizes.new_zeros(len(sizes), len(keys)).scatter_(1, experts, sizes)
    return shares / shares.sum(1, keepdim=True)
