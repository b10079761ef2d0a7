"""FedCLIP: an attention-based adapter on the image features of a CLIP, averaged over clients.

Lu et al., "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning" (IEEE
Data Engineering Bulletin 2023), Section 3. The adapter gives every entry of an image's feature I a
weight, att(I) = softmax(W2 tanh(W1 I + b1) + b2). The image is classified by the cosines between
att(I) * I and the text features of the classes. Both towers are frozen. Clients minimise CLIP's own
contrastive loss: within a batch, each image must find its text, and each text its image. Choices,
which follow the released code (fed_at_clip.py) where the paper leaves one open:

- In the contrastive loss, two images of the same class count as negatives of each other, as in the
  released code. With `loss: classes`, the loss is the cross-entropy over all classes instead. If
  the last batch of an epoch has only one image, there is nothing to contrast. Such a batch makes no
  step, not even of weight decay.
- All clients have equal weights, and every round starts with a fresh Adam.
- The weights start as torch draws linear layers, from U(-1, 1) / sqrt(d).
- The adapter reads features of unit length, like all features in FedLoom. The released code reads
  them before they are normalised.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]


def class_text_features(task: Task) -> Tensor:
    """Compute the features [C, d] of the classes' texts."""
    return task.backbone.zero_shot(task.data.classes, [task.options.template])


@fl.hookimpl
def init_server(task: Task) -> Tree:
    width = class_text_features(task).shape[1]
    generator = task.generator("adapter")
    draw = partial(fl.init_linear, width, generator=generator, device=task.backbone.device)
    first = {"w1": draw(width, width), "b1": draw(width)}
    return {"params": {**first, "w2": draw(width, width), "b2": draw(width)}}


def adapt_features(params: Tree, features: Tensor) -> Tensor:
    """Return att(I) * I [K, B, d], scaled to unit length, for image features I [K, B, d]."""
    hidden = torch.tanh(fl.linear(features, params["w1"], params["b1"]))
    weights = fl.linear(hidden, params["w2"], params["b2"]).softmax(-1)
    return F.normalize(weights * features, dim=-1)


def contrast(logits: Tensor, mask: Tensor) -> Tensor:
    """Compute CLIP's contrastive loss [K, B].

    It is the mean of two cross-entropies: of an image, which must find its text among the texts of
    the batch, and of a text, which must find its image among the images of the batch.

    Args:
        logits: [K, B, B], of each image (second axis) with the text of each image (third axis).
        mask: bool [K, B], false for images that only fill up the batch. Their loss is 0.
    """
    hidden = logits.masked_fill(~mask[:, None], float("-inf"))  # hides the texts of padding
    image_losses = -hidden.log_softmax(2).diagonal(dim1=1, dim2=2)
    hidden = logits.masked_fill(~mask[..., None], float("-inf"))  # hides the images of padding
    text_losses = -hidden.log_softmax(1).diagonal(dim1=1, dim2=2)
    return ((image_losses + text_losses) / 2).where(mask, 0)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the loss [K, B] that the option `loss` names."""
    images = adapt_features(params, batch.features)
    if task.options.loss == "classes":
        return fl.cross_entropy(task.backbone.logits(images, received["texts"]), batch.labels)
    own = received["texts"][0][batch.labels]  # [K, B, d]; all clients have the same texts
    return contrast(task.backbone.logits(images, own), batch.mask)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    known = {**received, "texts": class_text_features(task).expand(len(clients), -1, -1)}
    if task.options.loss == "classes":
        return fl.make_updates(fl.train_locally(task, loss, known, clients), clients)
    updates = fl.make_updates(
        fl.train_locally(task, loss, known, clients, min_batch_size=2), clients
    )
    for update in updates:  # the loss of a guess among the texts of a batch
        update.metrics["guessing_loss"] = math.log(task.training.batch_size)
    return updates


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return task.backbone.logits(
        adapt_features(received["params"], batch.features), class_text_features(task)
    )
