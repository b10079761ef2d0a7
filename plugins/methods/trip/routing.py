"""Routing without parameters: patches of an image are clustered, and each cluster gets an expert.

As in the released code: clusters by k-means with a capacity, experts by a one-to-one matching.
"""

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

ITERATIONS = 100
TOLERANCE = 1e-4  # of the centroids' mean shift
STEP = 1e-4  # of a cluster's price


def capacities(patches: int, clusters: int, factor: float) -> Tensor:
    """Return how many patches each cluster may take [E]; the first ones take the remainder."""
    each = torch.full((clusters,), float(patches // clusters * factor)).floor().long()
    return each + (torch.arange(clusters) < patches % clusters)


def assign(prices: Tensor, room: Tensor) -> Tensor:
    """Return the cluster of every patch [N, T], or E if its cluster is full.

    A patch wants the cheapest cluster, and takes it or none; the cheapest patches come first.

    Args:
        prices: [N, T, E] of patches in clusters.
        room: how many patches each cluster takes [E].
    """
    cheapest, wanted = prices.min(-1)  # [N, T]
    order = cheapest.sort(dim=1, stable=True).indices
    sorted_wanted = wanted.gather(1, order)
    chosen = F.one_hot(sorted_wanted, len(room))  # [N, T, E]
    rank = (chosen.cumsum(1) * chosen).sum(-1)  # from 1, among those that want the same cluster
    taken = torch.where(rank <= room[sorted_wanted], sorted_wanted, len(room))
    return torch.empty_like(wanted).scatter_(1, order, taken)


def cluster(patches: Tensor, first: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster the patches of images; return centroids [N, E, d] and sizes [N, E] of clusters.

    An empty cluster moves to the patch that is farthest from all centroids.

    Args:
        patches: [N, T, d].
        first: positions of the patches that are the first centroids [E].
        room: how many patches each cluster takes [E].
    """
    # the start
    count = len(room)
    centroids = patches[:, first].clone()
    extra = patches.new_zeros(len(patches), count)  # prices of clusters beyond distances
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

        # a cluster that is too large becomes dearer
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
    """Return the share of each expert [N, E] in images with patches [N, T, d].

    Each cluster is matched with another expert, for the largest sum of cosines between centroids
    and keys [E, d]; an expert's share is that of its cluster's patches among all clusters'. There
    are as many clusters as patches `first` that are their first centroids.
    """
    room = capacities(patches.shape[1], len(first), factor).to(patches.device)
    centroids, sizes = cluster(patches, first, room)
    cosines = F.normalize(centroids, dim=-1) @ F.normalize(keys, dim=-1).mT
    matched = [linear_sum_assignment(c, maximize=True)[1] for c in cosines.cpu().numpy()]
    experts = torch.tensor(np.array(matched), device=sizes.device)  # of each cluster [N, E]
    shares = sizes.new_zeros(len(sizes), len(keys)).scatter_(1, experts, sizes)
    return shares / shares.sum(1, keepdim=True)
