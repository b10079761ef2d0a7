"""Top-k (Stich et al., NeurIPS 2018): a client sends the largest entries of its update alone.

The update is the change that training made to each tensor in `params`. Of its n entries the
ceil(share n) of the largest magnitude are sent, as values and positions; the server adds them to
the parameters that the client had received. Tensors that the client had not received are sent
whole. The client keeps no memory of the rest.
"""

import math
from collections.abc import Generator
from dataclasses import replace

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update

from .options import Options


def largest_entries(change: Tensor, share: float) -> Tree:
    """Return the entries of the largest magnitude, and their positions in the flat tensor."""
    flat = change.flatten()
    positions = flat.abs().topk(math.ceil(share * len(flat))).indices.sort().values
    return {"values": flat[positions], "positions": positions.int()}


def add_entries(start: Tree, sparse: Tree) -> Tree:
    """Return the parameters `start` plus the entries in `sparse`."""
    result = {}
    for name, sent in sparse.items():
        if "positions" in sent:
            flat = start[name].flatten().index_add(0, sent["positions"], sent["values"])
            result[name] = flat.view_as(start[name])
        else:
            result[name] = add_entries(start[name], sent)
    return result


@fl.hookimpl(wrapper=True)
def client_update(
    task: Task, received: Tree, clients: Cohort
) -> Generator[None, list[Update], list[Update]]:
    options: Options = task.wrappers["topk"]
    share = options.share
    packed = []
    for k, update in enumerate((yield)):
        sent = update.payload.get("params", {})
        params, start, rest = fl.split_by_received(sent, fl.unstack(received, k).get("params", {}))
        sparse = fl.tensor_map(lambda new, old: largest_entries(new - old, share), params, start)
        packed.append(replace(update, payload=update.payload | {"params": rest, "sparse": sparse}))
    return packed


@fl.hookimpl(wrapper=True)
def receive() -> Generator[None, list[Update], list[Update]]:
    unpacked = []
    for update in (yield):
        payload = dict(update.payload)
        known = add_entries(update.received.get("params", {}), payload.pop("sparse"))
        payload["params"] = fl.merge(payload["params"], known)
        unpacked.append(replace(update, payload=payload))
    return unpacked
