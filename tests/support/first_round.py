"""Receive, train and send by hand: what tests of methods begin with."""

import sys
from types import ModuleType

import torch
from torch import Tensor

from fedloom.backbones.blocks import Insert
from fedloom.data.batch import Batch
from fedloom.federated.round import initial_state
from fedloom.federated.task import Cohort, Task, Update, cohort
from fedloom.hooks import loader, manifest
from fedloom.hooks.run_hooks import Hooks
from fedloom.toolbox import Tree, stack


def module(method: str, name: str = "plugin") -> ModuleType:
    """Return a module of a plugin's folder; every `load_hooks` makes another."""
    loader.import_plugin(manifest.find_method(method))
    return sys.modules[f"fedloom_plugins.{method}.{name}"]


def first_cohort(
    task: Task, hooks: Hooks, ids: list[int] | None = None, server: Tree | None = None
) -> tuple[Tree, Cohort, Batch]:
    """Return what clients (default: three) receive before round 1, the clients, and 4 images each.

    Args:
        server: the server's state; default: the initial one.
    """
    ids = task.data.participating[:3] if ids is None else ids
    server = initial_state(task, hooks).server if server is None else server
    received = stack([hooks.download(task=task, server=server, client=k) for k in ids])
    clients = cohort(task, ids, [hooks.init_client(task=task, client=k) for k in ids])
    return received, clients, task.data.batch([task.data.train[k][:4] for k in ids])


def upload(params: Tree, examples: int = 1, client: int = -1, **more: Tensor) -> Update:
    """Return what a client sends: its parameters and, beside them, other tensors by name."""
    return Update({"params": params, **more}, {}, examples, {}, client=client)


def prefix(tokens: Tensor) -> Insert:
    """Return an insert of tokens [K, P, d] in front of keys or values, as a plugin may write it."""
    shared = tokens.unsqueeze(1)  # [K, 1, P, d]
    return lambda given, out: torch.cat([shared.expand(-1, out.shape[1], -1, -1), out], -2)
