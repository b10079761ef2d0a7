"""A backdoor: attackers teach that a patch of pixels means one class.

Gu et al., "BadNets" (2017), stamp a pattern on training images and label them with a target class.
In federated learning, a few clients do so, and the averaged model learns it too (Bagdasaryan et
al., "How To Backdoor Federated Learning", AISTATS 2020). The column `backdoor_rate` of
evaluation.parquet is measured on triggered test images of other classes. It is the share of them
that an honest client puts into the target class. Choices:

- The trigger is fixed: a black and white square of two by two fields in the lower right corner,
  which is visible on any background. BadPromptFL (Zhang et al., 2025) learns its trigger together
  with the prompts, which is not done here.
- The poisoned images are drawn by the seed, and are the same in every round. Class priors follow
  their new labels. Prototypes that a study computes before round 1 are those of the original
  images.
- In data sets with novel classes, the target is a number among the classes that clients train on.
"""

from collections.abc import Generator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

import fedloom.toolbox as fl
from fedloom.toolbox import Federation, Task

from .images import repaint_images
from .options import Options


def stamp_trigger(images: np.ndarray, size: float) -> np.ndarray:
    """Return images with the trigger in their lower right corner.

    Args:
        images: uint8 [n, H, W, channels].
        size: side of the trigger, as a share of the height H.
    """
    side = max(2, round(size * images.shape[1]))
    upper = np.arange(side) < side // 2
    images = images.copy()
    images[:, -side:, -side:] = np.where(upper[:, None] == upper, 255, 0)[..., None]
    return images


def other_rows(task: Task, rows: np.ndarray) -> np.ndarray:
    """Return those of the images `rows` that do not belong to the target class.

    Raises:
        FedLoomError: there is no such target class.
    """
    options: Options = task.wrappers["backdoor"]
    target = options.target
    classes = task.data.num_classes
    if target >= classes:
        raise fl.FedLoomError(
            f"backdoor: target must be below the {classes} classes, got {target}; lower it"
        )
    return rows[task.data.labels.cpu().numpy()[rows] != target]


@fl.hookimpl(wrapper=True)
def attackers(task: Task) -> Generator[None, list[int], list[int]]:
    options: Options = task.wrappers["backdoor"]
    return sorted({*(yield), *fl.draw_attackers(task, options.share)})


@fl.hookimpl(wrapper=True)
def training_data(task: Task) -> Generator[None, Federation, Federation]:
    data = yield
    options: Options = task.wrappers["backdoor"]

    # the images that attackers poison
    chosen = []
    for client in fl.draw_attackers(task, options.share):
        for part in data.parts_of(client):  # so that the images stay poisoned as others arrive
            rows = other_rows(task, part)
            generator = task.at(0).generator("trigger", client)
            order = torch.randperm(len(rows), generator=generator).numpy()
            chosen.append(rows[order[: round(options.poisoned * len(rows))]])
    poisoned = np.sort(np.concatenate([np.array([], np.int64), *chosen]))
    if not len(poisoned):
        return data

    # their labels, then their pixels
    data = fl.relabelled(data, poisoned, options.target)
    used = np.intersect1d(poisoned, np.concatenate(data.train))  # without images that have left
    if not len(used):
        return data
    return repaint_images(task, data, used, partial(stamp_trigger, size=options.size))


@fl.hookimpl(wrapper=True)
def triggered(task: Task) -> Generator[None, Federation | None, Federation | None]:
    yield
    options: Options = task.wrappers["backdoor"]
    tests = [other_rows(task, rows) for rows in task.data.test]
    rows = np.unique(np.concatenate(tests))
    data = repaint_images(task, task.data, rows, partial(stamp_trigger, size=options.size))
    labels = torch.full_like(data.labels, options.target)
    return replace(data, test=tests, labels=labels)
