"""What PFPT's figures show: the size of the pool by round, and its prompts over rounds."""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree, ViTTask


def start_history(pool: Tensor) -> Tree:
    """Return the history at round 0, from the pool [n, d].

    A history has `sizes`, the size of the pool in each round, and the pool's `prompts` in some
    rounds, with their `rounds`.
    """
    return fl.start_history(pool) | {"sizes": torch.tensor([len(pool)], device=pool.device)}


def extend_history(task: ViTTask, history: Tree, pool: Tensor) -> Tree:
    """Return the history with this round's pool [n, d]."""
    sizes = torch.cat([history["sizes"], history["sizes"].new_tensor([len(pool)])])
    return fl.extend_history(task, history, pool) | {"sizes": sizes}


def sizes(history: Tree) -> dict[str, list]:
    """Return the artefact `pool_sizes`: the size of the pool in each round, from round 0."""
    return {"round": list(range(len(history["sizes"]))), "size": history["sizes"].tolist()}
