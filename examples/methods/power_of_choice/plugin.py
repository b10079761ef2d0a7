"""Power-of-Choice (Cho et al., AISTATS 2022, Section 4): select the clients of the highest loss.

Of `candidates` clients, drawn without replacement in proportion to their numbers of training
images, those with the highest last known training loss take part. This is the variant rpow-d, which
asks no client for its present loss; a client without a known loss comes first.
"""

import math
from collections.abc import Generator

import torch

import fedloom.toolbox as fl
from fedloom.toolbox import History, Task

from .options import Options


@fl.hookimpl(wrapper=True)
def select_clients(
    task: Task, available: list[int], history: History
) -> Generator[None, list[int], list[int]]:
    yield  # returns the method's selection, which is not used
    count = min(task.clients_per_round, len(available))
    options: Options = task.wrappers["power_of_choice"]
    drawn = min(options.candidates, len(available))
    if drawn < count:
        raise fl.FedLoomError(
            f"power_of_choice: candidates: {drawn} are fewer than {count} clients"
        )
    images = torch.tensor([history.num_examples[k] for k in available], dtype=torch.float64)
    positions = torch.multinomial(images, drawn, generator=task.generator("candidates"))
    candidates = sorted(available[i] for i in positions.tolist())
    by_loss = sorted(candidates, key=lambda k: -history.train_loss.get(k, math.inf))
    return sorted(by_loss[:count])
