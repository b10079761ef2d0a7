"""Keep the server's prompts of some rounds, for figures of how they move."""

import torch
from torch import Tensor

from fedloom.common.trees import Tree
from fedloom.federated.task import Task

# sets of prompts that are kept, at most, beside the first
SNAPSHOTS = 16


def start_history(prompts: Tensor) -> Tree:
    """Return the history at round 0, of prompts [n, d]: `prompts` [m, d] and their `rounds` [m]."""
    rounds = torch.zeros(len(prompts), dtype=torch.int64, device=prompts.device)
    return {"prompts": prompts.clone(), "rounds": rounds}


def extend_history(task: Task, history: Tree, prompts: Tensor) -> Tree:
    """Return the history with this round's prompts [n, d], whose number may change by round.

    It keeps those of every `options.history`-th round; the distance doubles beyond SNAPSHOTS sets.
    """
    stride = task.options.history
    while task.round // stride > SNAPSHOTS:
        stride *= 2

    # rows of rounds between the sets that are kept drop out, also those of earlier rounds
    now = history["rounds"].new_full((len(prompts),), task.round)
    rounds = torch.cat([history["rounds"], now])
    kept = rounds % stride == 0
    return {"prompts": torch.cat([history["prompts"], prompts])[kept], "rounds": rounds[kept]}


def history_rows(history: Tree) -> dict[str, list]:
    """Return the artefact `prompt_history`: one row per kept prompt."""
    return {"round": history["rounds"].tolist(), "vector": history["prompts"].tolist()}
