"""PromptFL: one learned context before the class names of a CLIP, averaged over clients.

Guo et al., "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models"
(IEEE TMC 2023). It is CoOp (Zhou et al., IJCV 2022) with one context for all classes, trained by
FedAvg. The class name comes last. Clients are weighted by their training images.

With `mu` > 0 it is FedPHA's baseline Prompt+Prox. The loss then adds mu / 2 times the squared
distance to the received context (FedProx: Li et al., "Federated Optimization in Heterogeneous
Networks", MLSys 2020). Other public ports compute the distance of detached tensors, so that it has
no gradient. Here its gradient is mu times the difference.
"""

from typing import Any

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.Task[Any, Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    """Return a fresh context [L, d]."""
    options = task.options
    context = fl.init_context(task, options.length, options.words, task.generator("context"))
    return {"params": {"context": context}}


def logits(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Return the logits [K, B, C] of images under the contexts [K, L, d]."""
    clip = task.backbone
    text = clip.text_features(params["context"], task.data.classes)  # [K, C, d_joint]
    return clip.logits(batch.features, text)


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> Tensor | tuple[Tensor, Tree]:
    """Return the cross-entropy [K, B], and add mu/2 ||v - v_received||^2 if `mu` is not 0.

    v is the context. Only the cross-entropy is reported.
    """
    entropy = fl.cross_entropy(logits(task, params, batch), batch.labels)  # [K, B]
    if not task.options.mu:
        return entropy
    penalty = task.options.mu / 2 * fl.squared_distance(params, received["params"])  # [K]
    return entropy + penalty[:, None], {"reported_loss": entropy}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Train and upload the context."""
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    """Return logits [K, B, C] under the global context."""
    return logits(task, received["params"], batch)
