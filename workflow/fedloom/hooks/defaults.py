"""Functions that the default hooks share with methods and the runtime."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.common.seeds import torch_generator
from fedloom.common.trees import Tree, tensor_map

if TYPE_CHECKING:
    from fedloom.federated.task import Update


def sample_clients(available: Sequence[int], count: int, seed: int, round_number: int) -> list[int]:
    """Draw `count` clients for round `round_number`, uniformly without replacement; ids ascending.

    If fewer than `count` are available, all of them are returned.
    """
    generator = torch_generator(seed, "sampling", round_number)
    order = torch.randperm(len(available), generator=generator)
    return sorted(available[k] for k in order[:count].tolist())


def mean(updates: "list[Update]", weighted: bool = False) -> Tree:
    """Return the mean over clients of the payloads' `params`.

    Args:
        weighted: True weighs each client by its number of training images, as FedAvg does (McMahan
            et al., AISTATS 2017). False gives all clients equal weights.
    """
    weights = [1] * len(updates)
    if weighted:
        weights = [update.num_examples for update in updates]
    total = sum(weights)

    def average(*values: Tensor) -> Tensor:
        terms = (w / total * value for w, value in zip(weights, values, strict=True))
        return sum(terms, start=torch.zeros(()))

    return tensor_map(average, *(update.payload["params"] for update in updates))
