"""PromptFL, FedOTP and FedPHA as loops over clients, without FedLoom's engine.

`plain_round` trains one client after the other. What a step computes of images and prompts depends
on the `Baseline`:

- `usual`, as the authors' code does: the images go through the frozen image tower in every step,
  each context is a call of the text tower in which every class has 77 positions, and the projection
  of FedPHA is computed in every step.
- `careful`: image features come from a cache, one call of the text tower computes all contexts up
  to the longest EOT, and the projection is computed once a round.

Sinkhorn's iterations are those of `plugins/methods/fedotp/transport.py` in all cases: they are not
the subject of the comparison.

Shapes: B images, M patches, n contexts, L tokens of a context, C classes, d width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from clip_text import PLACES, padded_text, tokenized
from torch import Tensor

from fedloom.backbones.clip.image import image_tower
from fedloom.data.batch import shuffled_batches
from fedloom.federated.task import Task
from fedloom.hooks import loader, manifest

transport_plan = loader.import_plugin(manifest.find_method("fedotp")).transport_plan


@dataclass(frozen=True)
class Learner:
    """A method, as far as its training differs from others'.

    Attributes:
        cache: what it reads of an image: `features` [d_joint], or `patches` [M, d_joint].
        prompts: returns the contexts [L, d] before the classes, given those that are trained (the
            global one first) and a function that projects a context as FedPHA does.
        loss: the trained loss of a batch and the reported one, given the method's options, the
            factor of a cosine in a logit, what the images are [B, ...], the features of the prompts
            [n, C, d_joint] and labels.
    """

    cache: str
    prompts: Callable[[Sequence[Tensor], Callable[[Tensor], Tensor]], list[Tensor]]
    loss: Callable[[SimpleNamespace, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Baseline:
    """How a loop computes what a step needs.

    Attributes:
        images: returns what the method reads of the images in these rows of the store [B, ...].
        texts: returns the features [n, C, d_joint] of contexts before all classes.
        projection: returns the projection [d, d] of the received context.
    """

    images: Callable[[np.ndarray], Tensor]
    texts: Callable[[list[Tensor]], Tensor]
    projection: Callable[[], Tensor]


def promptfl_loss(
    options: SimpleNamespace, scale: Tensor, images: Tensor, texts: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of images [B, d_joint], which is reported too."""
    entropy = F.cross_entropy(scale * images @ texts[0].T, labels)
    return entropy, entropy


def fedotp_loss(
    options: SimpleNamespace, scale: Tensor, patches: Tensor, texts: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of patches [B, M, d_joint] under their transport plans (Eq. 5-8).

    It is reported too.
    """
    similarity = torch.einsum("bmd,ncd->bcmn", patches, texts)
    whole = torch.ones(1, len(patches), dtype=torch.bool)
    plan = transport_plan(
        1 - similarity.detach()[None],
        whole,
        options.mass,
        options.eps,
        balanced=options.balanced,
    )[0]
    entropy = F.cross_entropy(scale * (plan * similarity).sum((-2, -1)), labels)
    return entropy, entropy


def fedpha_loss(
    options: SimpleNamespace, scale: Tensor, images: Tensor, texts: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss of Eq. 13 for images [B, d_joint], in the paper's variant.

    The cross-entropy of the client's own context is reported.
    """
    global_texts, local_texts, projected_texts = texts  # [C, d_joint] each
    entropy = F.cross_entropy(scale * images @ local_texts.T, labels)
    entropy_of_global = F.cross_entropy(scale * images @ global_texts.T, labels)
    pull = F.mse_loss(local_texts, projected_texts)
    apart = (local_texts - global_texts).norm(dim=-1)  # [C]
    push = F.relu(options.alpha - apart).mean()
    return entropy + entropy_of_global + pull + push, entropy


LEARNERS = {
    "promptfl": Learner("features", lambda trained, project: [*trained], promptfl_loss),
    "fedotp": Learner("patches", lambda trained, project: [*trained], fedotp_loss),
    "fedpha": Learner(
        "features", lambda trained, project: [*trained, project(trained[1])], fedpha_loss
    ),
}


def weakest_directions(context: Tensor, rho: float) -> Tensor:
    """Return FedPHA's projection [d, d] on what a context [L, d] leaves out (Eq. 8-10)."""
    width = context.shape[1]
    rows = torch.linalg.svd(context, full_matrices=False).Vh
    basis = torch.linalg.qr(rows.mT, mode="complete").Q
    v2 = basis[:, width - int((1 - rho) * width + 1e-9) :]
    return v2 @ v2.mT


def usual(task: Task, learner: Learner, received: Tensor) -> Baseline:
    """Return the loop that a prompt learner for CLIP is usually written as (see the module)."""
    model, data = task.backbone.model, task.data

    def images(rows: np.ndarray) -> Tensor:
        pixels = task.backbone.pixels(torch.from_numpy(data.store.images(rows).copy()))
        if learner.cache == "features":
            return model.encode_image(pixels, normalize=True)
        return F.normalize(image_tower(model.visual, "")(pixels, {}, None, False)[1], dim=-1)

    def texts(contexts: list[Tensor]) -> Tensor:
        each = [padded_text(model, context[None], data.classes, PLACES) for context in contexts]
        return torch.cat(each)

    return Baseline(images, texts, lambda: weakest_directions(received, task.options.rho))


def careful(task: Task, learner: Learner, received: Tensor) -> Baseline:
    """Return the loop as a researcher writes it who looks at the time (see the module)."""
    model, data = task.backbone.model, task.data
    assert data.patches is not None or learner.cache == "features"
    cached = data.patches() if data.patches and learner.cache != "features" else data.tokens(None)
    tokens, _ = tokenized(model, len(received), tuple(data.classes))
    longest = int(tokens.argmax(1).max()) + 1

    return Baseline(
        images=lambda rows: cached[torch.from_numpy(rows)].float(),
        texts=lambda contexts: padded_text(model, torch.stack(contexts), data.classes, longest),
        projection=cache(lambda: weakest_directions(received, task.options.rho)),
    )


def plain_round(
    task: Task, learner: Learner, baseline: Baseline, received: Tensor, local: list[Tensor | None]
) -> tuple[float, Tensor]:
    """Train a round one client after the other.

    Args:
        received: the global context [L, d].
        local: each client's own context [L, d], if the method has one.

    Returns:
        The clients' mean loss, and the next global context, weighted by training images.
    """
    losses, contexts, counts = [], [], []
    for client, own in zip(task.data.participating, local, strict=True):
        start = [received] if own is None else [received, own]
        trained = [context.clone().requires_grad_() for context in start]
        losses.append(train_client(task, learner, baseline, client, trained))
        counts.append(len(task.data.train[client]))
        contexts.append(counts[-1] * trained[0].detach())
    return float(np.mean(losses)), torch.stack(contexts).sum(0) / sum(counts)


def train_client(
    task: Task, learner: Learner, baseline: Baseline, client: int, trained: list[Tensor]
) -> float:
    """Train a client's contexts [L, d] in place, and return the mean of what its steps report."""
    data, training = task.data, task.training
    scale, losses = task.backbone.model.logit_scale.exp(), []
    optimizer = torch.optim.SGD(
        trained, training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    stream = (task.seed, task.round, client, 0)
    for rows in shuffled_batches(data.train[client], training.batch_size, training.epochs, *stream):
        contexts = learner.prompts(trained, lambda own: own @ baseline.projection())
        texts, images = baseline.texts(contexts), baseline.images(rows)
        labels = data.labels[torch.from_numpy(rows)]
        loss, reported = learner.loss(task.options, scale, images, texts, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(reported.item())
    return float(np.mean(losses))
