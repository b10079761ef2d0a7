"""Models of which clients train heads and weights, and their gradients by torch alone."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from changed_task import with_training
from doubled import doubled, images_of, logits
from fedloom.common.trees import build_tree
from fedloom.toolbox import leaves, tensor_map
from first_round import first_cohort

LAST = r"^blocks\.11\.mlp\.fc2\.|^norm\."  # few weights, and some nonlinearity behind them


PLAIN = {
    "epochs": 1, "batch_size": 1000, "lr": 0.2, "momentum": 0.0, "weight_decay": 0.0, "clip": None,
}  # fmt: skip


def cases_of_last_weights(tiny):
    """Return case(name, **options): a task in float64 whose epochs are SGD steps, and its hooks."""

    def make(name, epochs=1, **options):
        task, hooks = tiny(name, **{"train": LAST, **options})
        return with_training(doubled(task), **PLAIN | {"epochs": epochs}), hooks

    return make


def shaken(tree):
    return tensor_map(lambda v: v.double() + 0.3 * torch.randn(v.shape).double(), tree)


def random_case(task, hooks):
    """Return random parameters [3, ...] in float64, the clients, and a batch of each."""
    received, clients, batch = first_cohort(task, hooks)
    clients = replace(clients, state=shaken(clients.state))
    return shaken(received["params"]), clients, batch


def part(tree, k):
    """Return client k's, or component k's, part of a stacked tree."""
    return tensor_map(lambda v: v[k].detach(), tree)


def answers(task, pixels, model):
    """Return timm's logits of a model {"head": ..., "weights": ...}."""
    return logits(task, pixels, model["head"], model.get("weights", {}))


def descend(model, loss, parts, steps, lr=0.2):
    """Return a model after plain gradient descent of some of its parts."""
    for _ in range(steps):
        moving = {name: model[name] for name in parts}
        slopes = torch.func.grad(lambda own, rest: loss(rest | own))(moving, model)
        model = model | tensor_map(lambda v, slope: v - lr * slope, moving, slopes)
    return model


def slopes_of(value, params):
    """Return the gradient of the sum of `value`, by parameter."""
    flat = dict(leaves(params))
    return build_tree(
        zip(flat, torch.autograd.grad(value.sum(), tuple(flat.values())), strict=True)
    )


def entropy(task, client):
    """Return a function: a model's cross-entropy on all of a client's training images."""
    pixels, labels = images_of(task, client)
    return lambda model: F.cross_entropy(answers(task, pixels, model), labels)


def close(actual, expected):
    # images and shares are float32
    torch.testing.assert_close(actual, expected, atol=1e-7, rtol=1e-6)


def mean_of(models, shares):
    return tensor_map(lambda *v: sum(s * x for s, x in zip(shares, v, strict=True)), *models)
