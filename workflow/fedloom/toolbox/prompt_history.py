"""Keep the server's prompts of some rounds, for figures of how the prompts move."""

import torch
from torch import Tensor

from fedloom.common.trees import Tree
from fedloom.federated.task import Task

# the largest number of sets of prompts that are kept, besides the first
SNAPSHOTS = 16


def start_history(prompts: Tensor) -> Tree:
    """Return the history at round 0, from prompts [n, d].

    A history has the rows `prompts` [m, d] and their `rounds` [m].
    """
    rounds = torch.zeros(len(prompts), dtype=torch.int64, device=prompts.device)
    return {"prompts": prompts.clone(), "rounds": rounds}


def extend_history(task: Task, history: Tree, prompts: Tensor) -> Tree:
    """Return the history with this round's prompts [n, d]; n may differ from round to round.

    It keeps the prompts of every `options.history`-th round. This distance is doubled as often as
    needed to keep at most SNAPSHOTS sets besides the first.
    """
    stride = task.options.history
    while task.round // stride > SNAPSHOTS:
        stride *= 2

    # drop the rows of all rounds that are not multiples of the distance, also earlier ones
    now = history["rounds"].new_full((len(prompts),), task.round)
    rounds = torch.cat([history["rounds"], now])
    kept = rounds % stride == 0
    return {"prompts": torch.cat([history["prompts"], prompts])[kept], "rounds": rounds[kept]}


def history_rows(history: Tree) -> dict[str, list]:
    """Return the artefact `prompt_history` by column: one row per prompt in the history."""
    return {"round": history["rounds"].tolist(), "vector": history["prompts"].tolist()}
