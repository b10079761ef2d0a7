"""Tables for figures: soft weights (Fig. 8), class prompts (Fig. 7), class tokens (Fig. 10)."""

from collections.abc import Iterator

import numpy as np
import torch

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree

from .forward import forward
from .options import Options

Task = fl.ViTTask[Options]

MAX_IMAGES = 600  # number of test images whose class tokens the t-SNE shows

Cohorts = Iterator[tuple[Tree, Cohort, Batch]]  # (received, clients, batch) of all test images


def class_prompts(server: Tree) -> dict[str, list]:
    """Return the trained class prompts [C, d], one row per class."""
    prompts = server["params"]["class_prompts"]
    return {"class": list(range(len(prompts))), "vector": prompts.tolist()}


def soft_weights(task: Task, cohorts: Cohorts) -> dict[str, list]:
    """Return the mean weight of each class prompt over the test images of each class.

    Returns:
        A row for each chosen block, class of images (`label`) and class prompt (`class`). A class
        without test images has no row.
    """
    blocks = sorted(task.options.blocks)
    classes = task.num_classes
    total = torch.zeros(len(blocks), classes, classes)
    count = torch.zeros(classes)
    for received, clients, batch in cohorts:
        passed = forward(task, received["params"], received, clients, batch, blocks[-1])
        labels = batch.labels[batch.mask].cpu()
        for s, weights in enumerate(passed.weights):
            total[s].index_add_(0, labels, weights[batch.mask].cpu())
        count += labels.bincount(minlength=classes)
    mean = total / count[:, None]  # [S, C, C]
    seen = count.nonzero().flatten()
    rows = torch.cartesian_prod(torch.tensor(blocks), seen, torch.arange(classes))
    columns = dict(zip(("block", "label", "class"), rows.T.tolist(), strict=True))
    return columns | {"weight": mean[:, seen].flatten().tolist()}


def class_tokens(task: Task, cohorts: Cohorts) -> dict[str, list]:
    """Return the class tokens of MAX_IMAGES test images, which are drawn from all clients'.

    Returns:
        A row for each image and block; block M + 1 stands for the classifier's input.
    """
    vit = task.backbone
    data = task.data

    # the images to show
    images = torch.from_numpy(np.sort(np.concatenate(data.test)))
    drawn = torch.randperm(len(images), generator=task.generator("shown"))[:MAX_IMAGES]

    # their tokens, a row for each block
    columns: dict[str, list] = {"block": [], "label": [], "domain": [], "vector": []}
    for received, clients, batch in cohorts:
        index = torch.from_numpy(batch.index)
        mask = batch.mask.cpu() & torch.isin(index, images[drawn])
        if not mask.any():
            continue
        passed = forward(task, received["params"], received, clients, batch, vit.depth + 1)
        labels = batch.labels.cpu()[mask].tolist()
        domains = data.store.domains[index[mask].numpy()].tolist()
        for j, cls in enumerate(passed.class_tokens, 1):
            columns["block"] += [j] * len(labels)
            columns["label"] += labels
            columns["domain"] += domains
            columns["vector"] += cls.cpu()[mask].tolist()
    return columns
