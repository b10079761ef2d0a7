"""CReFF: the server re-trains the classifier on features that it fits to the clients' gradients.

Shang et al., "Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training
with Federated Features" (IJCAI 2022), Algorithm 1. In each round, a client

1. computes a gradient for each class that it has: that of the cross-entropy with respect to the
   re-trained classifier, averaged over its images of the class;
2. trains the whole model as in FedAvg, with the averaged classifier;
3. uploads the gradients and the model.

Then the server

1. averages the models, and for each class the gradients of the clients that have it;
2. moves the federated features of each class until their gradient points in the direction of the
   averaged one. The loss is one minus the cosine, summed over the rows of the classifier;
3. trains a new classifier on the federated features; every class has equally many features.

Predictions use the averaged body with the re-trained classifier. Choices where the papers leave one
open:

- Gradients are over all images of a class. The released code takes ten random batches of 32
  augmented images. The gradients are uploaded as one tensor [C, C, d], whose bytes are counted also
  for classes that the client lacks.
- Classifiers have no bias here. The first re-trained classifier is drawn as torch.nn.Linear draws
  its weights, and so is the start of each re-training. Federated features start from N(0, 1) and
  stay on the server.
- Steps, learning rates and batch size are those of the released code for CIFAR.
- On a ResNet, batch norm trains with the statistics of each batch. The running statistics are
  averaged over clients. The features for the gradients are computed with running statistics.

The equations are those of the released code.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.Task[Any, Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    shape = task.num_classes, task.options.features, task.backbone.width
    features = torch.randn(shape, generator=task.generator("federated features"))
    return {
        "params": fl.init_model(task),
        "constants": {"retrained": fl.random_head(task)},
        "features": features.to(task.backbone.device),  # [C, m, d]
    }


@torch.no_grad()
def real_gradients(task: Task, received: Tree, clients: Cohort) -> tuple[Tensor, Tensor]:
    """Compute each client's gradients with respect to the re-trained classifier, one per class.

    The gradient of class c is the mean of (softmax(W x) - y) x^T over the client's images of c.
    Here W [C, d] is the classifier, x the feature of an image and y its one-hot label.

    Returns:
        1. The gradients [K, C, C, d]: client, class of the images, row of W, entry of the feature.
           They are zero for a class that the client does not have.
        2. A mask [K, C], true where the client has images of the class.
    """
    params = received["params"]
    head = received["constants"]["retrained"]
    total = head.new_zeros(*head.shape[:2], *head.shape[1:])
    count = head.new_zeros(head.shape[:2])
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        features = fl.model_features(task, params, batch.images)  # [K, B, d]
        labels = F.one_hot(batch.labels, task.num_classes).to(features.dtype)  # [K, B, C]
        error = fl.linear(features, head).softmax(-1) - labels
        mine = labels * batch.mask[..., None]  # [K, B, C], zero for padding
        total += torch.einsum("kbc,kbj,kbd->kcjd", mine, error, features)
        count += mine.sum(1)
    return total / count.clamp(min=1)[..., None, None], count > 0


def head_gradients(features: Tensor, head: Tensor) -> Tensor:
    """Compute the gradient of the cross-entropy with respect to the classifier, for each class.

    It is the mean of (softmax(W x) - y) x^T over the class's features x, as in `real_gradients`.

    Args:
        features: the federated features, m of each class [C, m, d].
        head: the classifier W [C, d].

    Returns:
        [C, C, d]: class of the features, row of W, entry of the feature.
    """
    own = torch.eye(len(head), device=head.device)[:, None]  # labels: [C, 1, C]
    error = (features @ head.T).softmax(-1) - own  # [C, m, C]
    return error.mT @ features / features.shape[1]


def distance(one: Tensor, other: Tensor) -> Tensor:
    """Compute the distance [C] of two gradients [C, C, d] for each class (the first axis).

    It is the sum over the classifier's rows of one minus the cosine between the two gradients.
    """
    norms = one.norm(dim=-1) * other.norm(dim=-1)
    return (1 - (one * other).sum(-1) / (norms + 1e-6)).sum(-1)


def match(task: Task, features: Tensor, head: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """Return the federated features after gradient descent on the distance of their gradients.

    Args:
        features: the federated features [C, m, d] before the steps.
        head: the re-trained classifier [C, d], which stays as it is.
        target: the clients' mean gradients [C, C, d].
        known: bool [C], the classes that a client of the round has. Other features do not move.
    """
    for _ in range(task.options.matching_steps):
        features = features.detach().requires_grad_()
        objective = distance(head_gradients(features, head), target)[known].sum()
        (slope,) = torch.autograd.grad(objective, features)
        features = features - task.options.feature_lr * slope
    return features.detach()


def retrain(task: Task, features: Tensor) -> Tensor:
    """Return a new classifier [C, d], trained by SGD on the federated features [C, m, d]."""
    options = task.options
    stream = task.generator("re-training")
    labels = torch.eye(len(features), device=features.device)  # one-hot
    labels = labels.repeat_interleave(features.shape[1], 0)  # [C m, C]
    examples = features.flatten(0, 1)
    head = fl.random_head(task, task.round)
    for _ in range(options.retraining_epochs):
        order = torch.randperm(len(examples), generator=stream).to(features.device)
        for rows in order.split(options.retraining_batch):
            error = (examples[rows] @ head.T).softmax(-1) - labels[rows]
            head = head - options.retraining_lr / len(rows) * error.T @ examples[rows]
    return head


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    found, known = real_gradients(task, received, clients)
    trained = fl.train_model(task, received, clients, received["params"])
    return fl.make_updates(trained, clients, gradients=found, known=known)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    updates = sorted(updates, key=lambda update: update.client)
    # number of clients that have the class [C], and the mean gradient over these clients
    known = torch.stack([update.payload["known"] for update in updates]).sum(0)
    total = torch.stack([update.payload["gradients"] for update in updates]).sum(0)
    target = total / known.clamp(min=1)[:, None, None]  # [C, C, d]
    old = server["constants"]["retrained"]
    features = match(task, server["features"], old, target, known > 0)
    return {
        "params": fl.mean(updates, task.options.weighted),
        "constants": {"retrained": retrain(task, features)},
        "features": features,
    }


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    params = received["params"] | {"head": received["constants"]["retrained"]}
    return fl.model_logits(task, params, batch)  # [K, B, C]
