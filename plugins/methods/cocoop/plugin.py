"""FedCoCoOp: a context that a small network shifts for every image, averaged over clients.

Zhou et al., "Conditional Prompt Learning for Vision-Language Models" (CVPR 2022), Section 3.2: a
meta-net of two layers, d' -> d' / 16 -> d with a ReLU between, makes a token pi(x) of an image's
feature x, which is added to every token of the context. So every image has its own texts of all
classes. Context and meta-net are trained together. Its authors train on one machine; under FedAvg,
weighted by training images, it is PromptFL's twin and a baseline of FedMGP (NeurIPS 2025).
Choices:

- The meta-net reads features of unit length and starts as torch draws linear layers, from
  U(-1, 1) / sqrt(inputs), its second layer too, as in the released code.
- The context starts from the words "a photo of a", as in the released configuration.
- A batch is one image, as in the paper: memory grows with images times classes. FedMGP's
  configuration has batches of 8, 16 drawn tokens, a constant rate of 0.001, and two epochs a round.
- A round is one epoch; the paper trains ten, with a first epoch at rate 1e-5, left out here. A
  client starts each round with a fresh optimiser.
"""

from functools import partial

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.CLIPTask[Options]

REDUCTION = 16


@fl.hookimpl
def init_server(task: Task) -> Tree:
    clip = task.backbone
    options = task.options
    generator = task.generator("meta-net")
    inputs = clip.encode(["a"]).shape[1]  # d'
    hidden = max(1, inputs // REDUCTION)

    draw = partial(fl.init_linear, generator=generator, device=clip.device)
    first = {"w1": draw(inputs, hidden, inputs), "b1": draw(inputs, hidden)}
    second = {"w2": draw(hidden, clip.width, hidden), "b2": draw(hidden, clip.width)}
    context = fl.init_context(task, options.length, options.words, task.generator("context"))
    return {"params": {"context": context, **first, **second}}


def shifts(params: Tree, features: Tensor) -> Tensor:
    """Compute pi(x) [K, B, d] of image features [K, B, d']."""
    hidden = torch.relu(fl.linear(features, params["w1"], params["b1"]))
    return fl.linear(hidden, params["w2"], params["b2"])


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] of images, each under its shifted context."""
    shifted = (
        params["context"][:, None] + shifts(params, images)[:, :, None]  # [K, b, L, d]
        for images in fl.split_images(task, batch.features)
    )
    return fl.contextual_logits(task, batch.features, shifted)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B]."""
    return fl.cross_entropy(logits(task, params, batch), batch.labels)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    return logits(task, received["params"], batch)
