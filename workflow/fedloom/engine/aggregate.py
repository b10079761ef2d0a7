"""Aggregators that methods share."""

from fedloom.engine.task import Update
from fedloom.engine.tree import Tree, tensor_map


def weighted_mean(updates: list[Update], weights: list[float]) -> Tree:
    """Mean of the payloads' `params` with `weights`, which need not sum to one."""
    total = sum(weights)

    def average(*values):
        return sum(w / total * value for w, value in zip(weights, values, strict=True))

    return tensor_map(average, *(update.payload["params"] for update in updates))


def mean(updates: list[Update]) -> Tree:
    """Unweighted mean of the payloads' `params`."""
    return weighted_mean(updates, [1.0] * len(updates))
