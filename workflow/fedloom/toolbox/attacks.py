"""What attackers do to the data of a run: who attacks, and with which labels. For wrappers."""

from dataclasses import replace

import numpy as np
import torch

from fedloom.common.errors import FedLoomError
from fedloom.common.seeds import torch_generator
from fedloom.data.federation import Federation, class_priors
from fedloom.federated.task import Task


def draw_attackers(task: Task, share: float) -> list[int]:
    """Return the ids of a share of the participating clients, ascending, the same in every round.

    All attacks with the same seed take the first clients of the same random order. So a larger
    share contains the clients of a smaller one.

    Raises:
        FedLoomError: there would be no attacker, or no honest client.
    """
    # the number of attackers: at least one client must attack, and at least one must not
    clients = task.data.participating
    count = round(share * len(clients))
    if not 0 < count < len(clients):
        raise FedLoomError(
            f"share: {share} of {len(clients)} participating clients must be one attacker or more, "
            f"and leave an honest client, got {count}; change it"
        )

    # the first clients of an order that depends only on the seed
    order = torch.randperm(len(clients), generator=torch_generator(task.seed, "attackers"))
    return sorted(clients[position] for position in order[:count].tolist())


def relabelled(data: Federation, rows: np.ndarray, classes: np.ndarray | int) -> Federation:
    """Return the data with other labels, and the class priors that follow from them.

    The images `rows` [n] get the labels `classes` [n], or all the same one. In a stream, the priors
    are those of all images that have arrived (`data.train_so_far`).
    """
    labels = data.labels.cpu().numpy().copy()
    labels[rows] = classes
    priors = class_priors(labels, data.train_so_far, data.num_classes)
    return replace(
        data,
        labels=torch.from_numpy(labels).to(data.device),
        priors=priors.to(data.device),
    )
