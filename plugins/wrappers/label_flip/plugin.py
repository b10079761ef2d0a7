"""Label flipping: attackers train as honest clients do, on images that they call by other classes.

Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems" (ESORICS 2020), flip
one class to another. Fang et al., "Local Model Poisoning Attacks to Byzantine-Robust Federated
Learning" (USENIX Security 2020), flip every class c to C - 1 - c. Choices:

- All training images of an attacker are flipped, in every round. Its class priors follow the new
  labels.
- C is the number of classes of the data set, so an attacker may use classes of which it has no
  image. Prototypes that a study computes before round 1 are those of the true classes.
"""

from collections.abc import Generator

import numpy as np

import fedloom.toolbox as fl
from fedloom.toolbox import Federation, Task

from .options import Options


def flip_labels(classes: np.ndarray, count: int, flip: str) -> np.ndarray:
    """Return the false label [n] for each of the true `classes` c [n].

    It is C - 1 - c with `flip: opposite`, else (c + 1) mod C. C is `count`.
    """
    return count - 1 - classes if flip == "opposite" else (classes + 1) % count


@fl.hookimpl(wrapper=True)
def attackers(task: Task) -> Generator[None, list[int], list[int]]:
    options: Options = task.wrappers["label_flip"]
    return sorted({*(yield), *fl.draw_attackers(task, options.share)})


@fl.hookimpl(wrapper=True)
def training_data(task: Task) -> Generator[None, Federation, Federation]:
    data = yield
    options: Options = task.wrappers["label_flip"]
    attacking = fl.draw_attackers(task, options.share)
    rows = np.concatenate([data.train_so_far[k] for k in attacking])
    classes = data.labels.cpu().numpy()[rows]
    return fl.relabelled(data, rows, flip_labels(classes, data.num_classes, options.flip))
