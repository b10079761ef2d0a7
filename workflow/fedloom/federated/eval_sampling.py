"""Which clients are evaluated after a round."""

from collections.abc import Sequence

import torch

from fedloom.common.seeds import torch_generator
from fedloom.federated.task import Task
from fedloom.study.jobs import TrainJob


def evaluated_clients(task: Task, job: TrainJob) -> Sequence[int]:
    """Return the ids of the clients that are evaluated after round `task.round`, ascending.

    All of them, or `job.evaluate_clients` where the round is one of `job.sampled`: participating
    and held-out clients in proportion to their numbers, but at least one that participates. They
    depend on the seed and the round alone.
    """
    everyone, count = range(task.data.num_clients), job.evaluate_clients
    if task.round not in job.sampled or count is None or count >= len(everyone):
        return everyone
    participating = task.data.participating
    held_out = [client for client in everyone if client not in task.data.position]
    first = max(1, round(count * len(participating) / len(everyone)))
    generator = torch_generator(task.seed, "evaluate", task.round)
    chosen: list[int] = []
    for group, number in ((participating, first), (held_out, count - first)):
        order = torch.randperm(len(group), generator=generator)
        chosen += [group[position] for position in order[:number].tolist()]
    return sorted(chosen)
