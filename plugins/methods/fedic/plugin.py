"""FEDIC: the server distils a calibrated ensemble of the clients' models into their average.

Shang et al., "FEDIC: Federated Learning on Non-IID and Long-Tailed Data via Calibrated
Distillation" (ICME 2022). Clients train as in FedAvg. The server has a few labelled images of each
class. In each round it

1. fine-tunes the average of the models on these images;
2. trains a calibration of the ensemble of the clients' models on them (see calibration.py). The
   calibration has a weight for each client, which depends on its logits for the image
   (client-wise). It has a scale and a shift for each class (class-wise). And it has a gate between
   the ensemble and the fine-tuned model, which depends on the mean of the clients' features;
3. trains the average to match the calibrated logits, softened by a temperature, and the labels.

Choices where the papers leave one open:

- The server's images are training images of held-out clients (`held_out` of the partition), at most
  `auxiliary` per class. These clients train nothing. The paper sets a balanced set aside before it
  makes the data long-tailed. It distils on unlabelled images of another dataset. Here the server's
  labelled images take their place.
- Calibration starts anew in every round. The released code goes on training one calibration through
  all rounds.
- Each of the server's three phases has 100 steps of Adam at a learning rate of 0.001, as in the
  released code. The phases that train the model have the released code's weight decay. Each step
  draws a new batch. Adam's moments start anew in every phase; in the released code they persist
  from round to round.
- The gate starts half open. Classifiers have no bias.
- On a ResNet, the clients' batch norm trains with the statistics of each batch. Their running
  statistics are averaged. On the server, batch norm uses these averages.

The equations are those of the released code.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .calibration import calibrate, init_calibration
from .options import Options

Task = fl.Task[Any, Options]

DECAY = 2e-4  # weight decay where the server trains a model, as in the released code
FIXED = "statistics"  # statistics of batch norm, which the server does not train


@fl.hookimpl
def init_server(task: Task) -> Tree:
    if not server_rows(task).size:
        raise fl.FedLoomError(
            "fedic: its server needs images, which are those of held-out clients; set held_out in "
            "the partition"
        )
    return {"params": fl.init_model(task)}


def server_rows(task: Task) -> np.ndarray:
    """Return the server's images as rows of the image store [n], the same in every round.

    They are drawn from the held-out clients' training images, at most `auxiliary` of each class,
    and are ordered by class.
    """
    away = sorted(set(range(task.data.num_clients)) - set(task.data.participating))
    rows = np.concatenate([task.data.train[k] for k in away] or [np.zeros(0, np.int64)])
    stream = task.at(0).generator("server's images")
    rows = rows[torch.randperm(len(rows), generator=stream).numpy()]
    labels = task.data.labels.cpu().numpy()[rows]
    chosen = [rows[labels == c][: task.options.auxiliary] for c in range(task.num_classes)]
    return np.concatenate(chosen)


@torch.no_grad()
def outputs(task: Task, models: Tree, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Compute features [S, n, d] and logits [S, n, C] of S models {name: [S, ...]}.

    Every model gets the same images, the n `rows` of the image store.
    """
    count = len(models["head"])
    parts = []
    for start in range(0, len(rows), 64):
        batch = task.data.batch([rows[start : start + 64]] * count)
        parts.append(fl.model_features(task, models, batch.images))
    features = torch.cat(parts, 1)
    return features, fl.linear(features, models["head"])


def descend(
    task: Task,
    params: Tree,
    rows: np.ndarray,
    purpose: str,
    loss: Callable[[Tree, Tensor], Tensor],
    decay: float = 0.0,
) -> Tree:
    """Return a tree of tensors after `server_steps` steps of Adam on random batches.

    Args:
        rows: the server's images [n].
        purpose: name of the random stream that draws the batches.
        loss: a function of the tree and of the positions [B] of a batch among the n rows. It
            returns the scalar to minimise.
        decay: weight decay.
    """
    options = task.options
    stream = task.generator(purpose)
    params = fl.tensor_map(lambda value: value.detach().clone().requires_grad_(), params)
    flat = [value for _, value in fl.leaves(params)]
    optimizer = torch.optim.Adam(flat, options.server_lr, weight_decay=decay)
    for _ in range(options.server_steps):
        some = torch.randperm(len(rows), generator=stream)[: options.server_batch]
        optimizer.zero_grad()
        loss(params, some).backward()
        optimizer.step()
    return fl.tensor_map(torch.Tensor.detach, params)


def train_on_server(
    task: Task, model: Tree, rows: np.ndarray, purpose: str, loss: Callable[..., Tensor]
) -> Tree:
    """Return a model {name: [...]} after training on the server's images.

    Args:
        rows: the server's images [n].
        purpose: name of the random stream that draws the batches.
        loss: a function of the model's logits [B, C], the labels [B] and the positions [B] of a
            batch among the n rows. It returns the scalar to minimise.
    """
    fixed = {name: value for name, value in model.items() if name == FIXED}
    trained = {name: value for name, value in model.items() if name != FIXED}

    def batch_loss(params: Tree, some: Tensor) -> Tensor:
        """Return the loss of the model on the batch of these positions."""
        batch = task.data.batch([rows[some.numpy()]])
        logits = fl.model_logits(task, fl.stack([params | fixed]), batch)[0]
        return loss(logits, batch.labels[0], some.to(logits.device))

    return descend(task, trained, rows, purpose, batch_loss, DECAY) | fixed


def teach(task: Task, average: Tree, models: Tree, rows: np.ndarray) -> Tensor:
    """Return the calibrated logits [n, C] of the ensemble on the server's n images.

    The average is fine-tuned, and then the calibration is trained on the same images.

    Args:
        average: the mean of the clients' models {name: [...]}.
        models: the clients' models {name: [S, ...]}.
        rows: the server's images [n].
    """
    labels = task.data.labels[torch.from_numpy(rows).to(task.data.labels.device)]
    tuned = train_on_server(
        task,
        average,
        rows,
        "fine-tuning",
        lambda logits, labels, _: F.cross_entropy(logits, labels),
    )
    features, logits = outputs(task, models, rows)
    middle = features.mean(0)  # [n, d]
    own = outputs(task, fl.stack([tuned]), rows)[1][0]

    def loss(params: Tree, some: Tensor) -> Tensor:
        """Return the cross-entropy of the calibrated logits of a batch."""
        some = some.to(logits.device)
        made = calibrate(params, middle[some], logits[:, some], own[some])
        return F.cross_entropy(made, labels[some])

    params = descend(task, init_calibration(task), rows, "calibration", loss)
    return calibrate(params, middle, logits, own)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_model(task, received, clients, received["params"]), clients)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    updates = sorted(updates, key=lambda update: update.client)
    rows = server_rows(task)
    average = fl.mean(updates, weighted=True)
    models = fl.stack([update.payload["params"] for update in updates])
    wanted = teach(task, average, models, rows)
    t = task.options.temperature

    def loss(logits: Tensor, labels: Tensor, some: Tensor) -> Tensor:
        """Return balance * KL(teacher || model) + (1 - balance) * cross-entropy.

        Both distributions of the KL divergence are softened by the temperature.
        """
        goal = (wanted[some] / t).softmax(-1)
        soft = F.kl_div((logits / t).log_softmax(-1), goal, reduction="batchmean")
        share = task.options.balance
        return share * soft + (1 - share) * F.cross_entropy(logits, labels)

    return {"params": train_on_server(task, average, rows, "distillation", loss)}


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return fl.model_logits(task, received["params"], batch)  # [K, B, C]
