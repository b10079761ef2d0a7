"""The steps of DP-FPL's released code (`variant: released`), which differ from the abstract's.

One SGD optimiser, with one momentum, serves all clients in all rounds. First, all clients compute
their gradients. Then the optimiser takes a step for each client, by ascending id. In each of these
steps, the gradient of p_G is the mean over clients, and the gradient of p_L is that of the last
client, because the code does not restore a client's own gradient. Each client therefore has its own
p_G: all are equal at first, and the momentum makes them differ.

A round is one such step of all its clients, whatever `epochs` and `local_steps` say. In its first
round, the code resets the contexts before each step, which has no effect on a round of one step.

The optimiser runs on the server, as in the code: a client uploads both gradients and downloads both
contexts.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import CLIPTask, Cohort, Tree, Update

NAMES = ("shared", "personal")
ONE_STEP = {
    "local_steps": 1,
    "lr": 1.0,
    "schedule": "constant",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip": None,
}


def init_server(task: CLIPTask, shared: Tensor, personal: Tensor) -> Tree:
    """Return the server's state before round 1.

    `clients` has both contexts [N, L, d] of all N clients, and `momentum` has one momentum [L, d]
    for each kind of context, which all clients share.

    Raises:
        FedLoomError: the training options ask for another optimiser than SGD.
    """
    if task.training.optimizer != "sgd":
        raise fl.FedLoomError(
            "dp_fpl: training.optimizer must be sgd with variant: released, got "
            f"{task.training.optimizer}; change it"
        )
    count = task.data.num_clients
    contexts = {"shared": shared, "personal": personal}
    return {
        "params": {"shared": shared},
        "clients": {name: value.expand(count, -1, -1).clone() for name, value in contexts.items()},
        "momentum": {name: torch.zeros_like(value) for name, value in contexts.items()},
    }


def download(task: CLIPTask, server: Tree, client: int) -> Tree:
    """Return both contexts [L, d] of a client.

    A held-out client and the server's model get the mean p_G over the participating clients.
    """
    contexts = {name: server["clients"][name][client] for name in NAMES}
    if client not in task.data.position:
        contexts |= server["params"]
    return {"params": contexts}


def upload(
    task: CLIPTask, loss: Callable[..., Any], known: Tree, clients: Cohort, counters: Tree
) -> list[Update]:
    """Return updates with the clients' gradients of both contexts.

    Each client makes one step of plain SGD with a learning rate of 1. The gradient is the context
    before the step minus the context after it.

    Args:
        loss: the loss of plugin.py.
        known: `params` are both contexts [K, L, d], and `numbers` the random numbers of the step.
        counters: the counter of steps, which the loss reads.
    """
    start = known["params"]
    once = replace(task, training=replace(task.training, **ONE_STEP))
    trained = fl.train_locally(once, loss, known, clients, params=start, counters=counters)
    gradients = {f"gradient_of_{name}": start[name] - trained.params[name] for name in NAMES}
    return fl.make_updates(replace(trained, params={}), clients, **gradients)


def aggregate(task: CLIPTask, server: Tree, updates: list[Update]) -> Tree:
    """Return the server's state after SGD has stepped the round's clients one after the other.

    All clients take the same gradients: the mean over clients for p_G, and the last client's for
    p_L. They also share the momentum, so each step changes the momentum that the next client gets.
    """
    updates = sorted(updates, key=lambda update: update.client)
    shared_gradient = torch.stack(
        [update.payload["gradient_of_shared"] for update in updates]
    ).mean(0)
    personal_gradient = updates[-1].payload["gradient_of_personal"]  # all clients take it
    gradients = {"shared": shared_gradient, "personal": personal_gradient}

    training = task.training
    lr = fl.learning_rate(task)
    contexts = {name: server["clients"][name].clone() for name in NAMES}
    momentum = dict(server["momentum"])
    for update in updates:
        for name, gradient in gradients.items():
            before = contexts[name][update.client]
            decayed = gradient + training.weight_decay * before
            momentum[name] = training.momentum * momentum[name] + decayed
            contexts[name][update.client] = before - lr * momentum[name]

    shared = contexts["shared"][task.data.participating].mean(0)
    return {"params": {"shared": shared}, "clients": contexts, "momentum": momentum}
