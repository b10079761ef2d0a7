"""FedEM (Marfoq et al., NeurIPS 2021, Algorithm 1): every client mixes the same few models.

M linear heads on cached features; a client keeps its weights pi. E-step: head m is responsible for
an image by q_m ~ pi_m exp(-l_m). M-step: pi is the mean of q over a client's images, and heads are
trained on the losses weighted by q. Before a test every client estimates pi anew.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    shape = task.options.components, task.num_classes, task.backbone.width
    draw = torch.randn(shape, generator=task.generator("models")) / task.backbone.width**0.5
    return {"params": {"heads": draw.to(task.backbone.device)}}  # [M, C, d]


@fl.hookimpl
def init_client(task: Task, client: int) -> Tree:
    return {"weights": torch.ones(task.options.components).softmax(0).to(task.backbone.device)}


def losses(heads: Tensor, batch: Batch) -> Tensor:
    """Return the cross-entropy [K, B, M] of each head; `heads` are [K, M, C, d]."""
    logits = [fl.linear(batch.features, head) for head in heads.unbind(1)]
    return torch.stack([fl.cross_entropy(each, batch.labels) for each in logits], -1)


def e_step(received: Tree, weights: Tensor, batch: Batch) -> Tensor:
    """Return q [K, B, M] of the images in a batch, from pi [K, M] and the received heads."""
    prior = weights.clamp(min=1e-12).log()[:, None]
    return (prior - losses(received["params"]["heads"], batch)).softmax(-1)


def m_step(task: Task, received: Tree, clients: Cohort) -> Tensor:
    """Return the next pi [K, M]: the mean of q over each client's training images."""
    weights = clients.state["weights"]
    total = torch.zeros_like(weights)
    for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        total += (e_step(received, weights, batch) * batch.mask[..., None]).sum(1)
    return total / total.sum(1, keepdim=True)


def loss(task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return the sum over heads of q times the loss [K, B]; q is from the received heads."""
    q = e_step(received, clients.state["weights"], batch)
    return (q * losses(params["heads"], batch)).sum(-1)


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    trained = fl.train_locally(task, loss, received, clients)
    return fl.make_updates(trained, clients, state=personalize(task, received, clients))


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    return {"weights": m_step(task, received, clients)}


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    heads = received["params"]["heads"]
    weights = clients.state["weights"]
    chances = torch.einsum("kbd,kmcd->kbmc", batch.features, heads).softmax(-1)
    return torch.einsum("km,kbmc->kbc", weights, chances).clamp(min=1e-30).log()  # [K, B, C]
