"""Top-k (Stich et al., NeurIPS 2018): a client sends the largest entries of its update alone.

The update is what training changed of each tensor in `params`. Of its n entries the ceil(share n)
of the largest magnitude are sent, as values and positions; the server adds them to its own
parameters. It keeps no memory of the rest.
"""

import math
from collections.abc import Generator
from dataclasses import replace

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update


def top(change: Tensor, share: float) -> Tree:
    """Return the values and positions of the largest entries by magnitude, of the flat tensor."""
    flat = change.flatten()
    positions = flat.abs().topk(math.ceil(share * len(flat))).indices.sort().values
    return {"values": flat[positions], "positions": positions.int()}


def dense(own: Tree, sparse: Tree) -> Tree:
    """Return the server's parameters with the sent entries added to them."""
    result = {}
    for name, sent in sparse.items():
        if "positions" in sent:
            flat = own[name].flatten().index_add(0, sent["positions"], sent["values"])
            result[name] = flat.view_as(own[name])
        else:
            result[name] = dense(own[name], sent)
    return result


@fl.hookimpl(wrapper=True)
def client_update(
    task: Task, received: Tree, clients: Cohort
) -> Generator[None, list[Update], list[Update]]:
    updates, share = (yield), task.wrappers["topk"].share
    packed = []
    for k, update in enumerate(updates):
        params, start = update.payload["params"], fl.unstack(received["params"], k)
        if any(name not in start for name in params):
            raise fl.FedLoomError(f"topk: {task.method} uploads parameters that it was not sent")
        sparse = fl.tensor_map(lambda new, old: top(new - old, share), params, start)
        rest = {key: value for key, value in update.payload.items() if key != "params"}
        packed.append(replace(update, payload=rest | {"sparse": sparse}))
    return packed


@fl.hookimpl(wrapper=True)
def receive(task: Task, server: Tree) -> Generator[None, list[Update], list[Update]]:
    unpacked = []
    for update in (yield):
        rest = {key: value for key, value in update.payload.items() if key != "sparse"}
        params = dense(server["params"], update.payload["sparse"])
        unpacked.append(replace(update, payload=rest | {"params": params}))
    return unpacked
