"""What SGPT's figures and tables show: who chose which group, and which images a group holds."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Tree, Update

from .options import Options
from .selection import query

Task = fl.ViTTask[Options]


def empty_history(groups: int, device: torch.device) -> Tree:
    """Return a history without rows: `round` [0], `client` [0], `selected` [0, G]."""
    none = torch.zeros(0, dtype=torch.int64, device=device)
    selected = torch.zeros(0, groups, dtype=torch.float64, device=device)
    return {"round": none, "client": none.clone(), "selected": selected}


def extend_history(history: Tree, number: int, updates: list[Update], selected: Tensor) -> Tree:
    """Return the history with one row per client of round `number`, from `selected` [K, G]."""
    clients = torch.tensor([update.client for update in updates], device=selected.device)
    new = {"client": clients, "round": torch.full_like(clients, number), "selected": selected}
    return {name: torch.cat([history[name], new[name]]) for name in new}


def group_counts(history: Tree) -> dict[str, list]:
    """Return the artefact `group_counts`: a row per group, for each client of a round."""
    groups = history["selected"].shape[1]
    return {
        "client": history["client"].repeat_interleave(groups).tolist(),
        "round": history["round"].repeat_interleave(groups).tolist(),
        "group": list(range(groups)) * len(history["client"]),
        "count": history["selected"].flatten().long().tolist(),
    }


def groups_of_images(task: Task, keys: Tensor) -> dict[str, list]:
    """Return the class, the group and the k-means cluster of each client's images.

    k-means is fitted to the training images, with as many clusters as there are groups. Features
    have unit length, since Eq. 5 compares directions.

    Args:
        keys: the keys of the groups [G, d].
    """
    data = task.data
    train = np.concatenate(data.train)
    test = np.concatenate(data.test)
    rows = torch.from_numpy(np.concatenate([train, test])).to(data.device)

    # the group whose key is nearest
    token = data.tokens(task.options.query_block or None)[rows].float()  # [N, d]
    features = F.normalize(query(task, token), dim=-1)
    groups = fl.cosine_similarity(features, keys).argmax(-1)  # [N]

    # the cluster of k-means
    points = features.cpu().numpy()
    seed = int(torch.randint(2**31, (), generator=task.generator("k-means")))
    kmeans = KMeans(len(keys), n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    kmeans.fit(points[: len(train)])

    labels = data.labels[rows].tolist()
    return {
        "class": [data.classes[label] for label in labels],
        "test": [False] * len(train) + [True] * len(test),
        "group": groups.tolist(),
        "cluster": np.asarray(kmeans.predict(points)).tolist(),
    }
