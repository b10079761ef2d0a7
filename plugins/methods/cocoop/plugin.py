"""FedCoCoOp: a context that a small network shifts for every image, averaged over clients.

Zhou et al., "Conditional Prompt Learning for Vision-Language Models" (CVPR 2022), Section 3.2. A
meta-net has two layers, d' -> d' / 16 -> d, with a ReLU between them. It turns the feature x of an
image into a token pi(x), which is added to every token of the context. So every image has texts of
its own for all classes. The context and the meta-net are trained together.

The authors train on one machine. Here the parameters are averaged by FedAvg, weighted by training
images. This makes the method the counterpart of PromptFL, and a baseline of FedMGP (NeurIPS 2025).
Choices:

- The meta-net reads features of unit length. Both of its layers start as torch draws linear layers,
  from U(-1, 1) / sqrt(inputs), as in the released code.
- The context starts from the words "a photo of a", as in the released configuration.
- A batch is one image, as in the paper, because memory grows with images times classes. FedMGP's
  configuration differs: batches of 8, 16 randomly drawn tokens, a constant learning rate of 0.001,
  and two epochs a round.
- A round is one epoch. The paper trains ten epochs, the first at a learning rate of 1e-5, which is
  left out here. A client starts each round with a fresh optimiser.
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
    """Compute pi(x) = W2 relu(W1 x + b1) + b2 [K, B, d] of image features x [K, B, d'].

    `params` has the meta-net: W1 [K, d' / 16, d'] and W2 [K, d, d' / 16], and their biases.
    """
    hidden = torch.relu(fl.linear(features, params["w1"], params["b1"]))
    return fl.linear(hidden, params["w2"], params["b2"])


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] of images. Image x has the context v + pi(x), with v [K, L, d]."""
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
