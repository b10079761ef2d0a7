"""Top-k with memory: a client sends the largest entries of its change, and remembers the others.

Stich et al., "Sparsified SGD with Memory" (NeurIPS 2018), Algorithm 1. The change that training
made to the parameters replaces the gradient of a step. Of memory + change, the k entries with the
largest magnitude are sent. The rest of the sum is the next memory. Choices:

- k counts over all parameters of a client together, as in Definition 2.1. It is rounded up.
- An entry is sent as its value and its position in its tensor, of 4 bytes each.
- Magnitudes are rounded to 16 bits before they are compared, and of equal ones the first is sent.
  Otherwise the last bits of a sum would choose between entries that are equal, such as those of a
  head for two classes.
- Parameters that the client had not received are sent as they are, and so is everything that is
  uploaded besides parameters. A memory is dropped if the shapes of the upload have changed.
- What the server sends is not compressed.
"""

import math
from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update

from .options import Options


def largest_entries(vector: Tensor, count: int) -> Tensor:
    """Return a mask [D] of the `count` entries of a vector [D] with the largest magnitude.

    Magnitudes are rounded to 16 bits. Of equal ones, the first counts as larger.
    """
    mantissa, exponent = vector.abs().double().frexp()
    ranked = torch.ldexp((mantissa * 2**16).round(), exponent)
    first = ranked.sort(descending=True, stable=True).indices[:count]
    return torch.zeros_like(vector, dtype=torch.bool).index_fill(0, first, True)


def pack(value: Tensor, chosen: Tensor) -> Tree:
    """Return the chosen entries of a tensor as `values`, and their `positions` in the flat tensor.

    `chosen` has the shape of the tensor, and is not zero at these entries.
    """
    positions = chosen.flatten().nonzero().flatten()
    return {"values": value.flatten()[positions], "positions": positions.int()}


def add(start: Tree, packed: Tree) -> Tree:
    """Return the parameters `start` plus the entries in `packed`."""
    result = {}
    for name, entry in packed.items():
        if "positions" in entry and isinstance(entry["positions"], Tensor):
            flat = start[name].flatten().index_add(0, entry["positions"], entry["values"])
            result[name] = flat.view_as(start[name])
        else:
            result[name] = add(start[name], entry)
    return result


def usable_memory(memory: Tree, change: Tree) -> Tree:
    """Return the memory, or zeros if its shapes are not those of the change."""
    shapes = [{path: value.shape for path, value in fl.leaves(tree)} for tree in (memory, change)]
    return memory if shapes[0] == shapes[1] else fl.tensor_map(torch.zeros_like, change)


@fl.hookimpl(wrapper=True)
def client_update(
    task: Task, received: Tree, clients: Cohort
) -> Generator[None, list[Update], list[Update]]:
    options: Options = task.wrappers["top_k"]
    packed = []
    for k, update in enumerate((yield)):
        sent = update.payload.get("params", {})
        params, start, rest = fl.split_by_received(sent, fl.unstack(received, k).get("params", {}))

        # the change, and what was left out of earlier ones
        total = fl.tensor_map(torch.sub, params, start)
        if options.memory:
            known = clients.wrapper_states[k].get("top_k", {})
            total = fl.tensor_map(torch.add, total, usable_memory(known, total))
        vector = fl.flatten(total)  # [D]
        if not len(vector):  # nothing to compress
            packed.append(update)
            continue

        # its largest numbers are sent; the others may be remembered
        chosen = largest_entries(vector, math.ceil(options.share * len(vector)))
        left = fl.unflatten(vector.masked_fill(chosen, 0), total)
        sparse = fl.tensor_map(pack, total, fl.unflatten(chosen.to(vector.dtype), total))
        payload = {**update.payload, "params": rest, "top_k": sparse}
        kept = update.wrapper_state | ({"top_k": left} if options.memory else {})
        packed.append(replace(update, payload=payload, wrapper_state=kept))
    return packed


@fl.hookimpl(wrapper=True)
def receive() -> Generator[None, list[Update], list[Update]]:
    unpacked = []
    for update in (yield):
        payload = dict(update.payload)
        if "top_k" in payload:
            known = add(update.received["params"], payload.pop("top_k"))
            payload["params"] = fl.merge(payload["params"], known)
        unpacked.append(replace(update, payload=payload))
    return unpacked
