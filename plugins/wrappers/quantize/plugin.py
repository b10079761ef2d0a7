"""QSGD: a client sends its change rounded at random to few levels, right in expectation.

Alistarh et al., "QSGD" (NIPS 2017), Section 3.1. An entry v_i of a bucket v becomes ||v||_2
sgn(v_i) xi_i. Here xi_i is one of the two levels l / s and (l + 1) / s next to |v_i| / ||v||_2. It
is the upper one with probability s |v_i| / ||v||_2 - l. The change that training made to the
parameters is quantised, where the paper quantises a gradient. Choices:

- Buckets are consecutive entries of one tensor, as in the paper's experiments (Section 4).
- A signed level takes `bits` bits, packed into bytes, and a norm takes 32 bits. The paper's Elias
  code is shorter if most levels are zero.
- Parameters that the client had not received are sent as they are, and so is everything that is
  uploaded besides parameters. What the server sends is not quantised.
"""

from collections.abc import Generator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update

from .options import Options


def buckets(flat: Tensor, size: int) -> Tensor:
    """Return a vector [D] as N rows of `size` entries [N, size]; zeros fill up the last row."""
    return F.pad(flat, (0, -len(flat) % size)).view(-1, size)


def levels(rows: Tensor, norms: Tensor, s: int, generator: torch.Generator) -> Tensor:
    """Draw the signed level s xi_i sgn(v_i) of each entry v_i of buckets [N, size], int64.

    It is a whole number from -s to s. `norms` [N] are the norms of the buckets.
    """
    drawn = torch.rand(rows.shape, generator=generator).to(rows)
    exact = s * rows.abs() / norms.where(norms > 0, 1)[:, None]
    lower = exact.floor()
    return ((lower + (drawn < exact - lower)) * rows.sign()).clamp(-s, s).to(torch.int64)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return codes [D] from 0 to 2^bits - 1 as bytes, with `bits` bits for each code."""
    shifts = torch.arange(bits, device=codes.device)
    stream = buckets(((codes[:, None] >> shifts) & 1).flatten(), 8)  # [bytes, 8]
    return (stream << torch.arange(8, device=codes.device)).sum(1).to(torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the `count` codes in the bytes of `pack`."""
    shifts = torch.arange(8, device=packed.device)
    stream = ((packed.long()[:, None] >> shifts) & 1).flatten()[: count * bits].view(count, bits)
    return (stream << torch.arange(bits, device=packed.device)).sum(1)


def quantise(change: Tensor, bits: int, size: int, generator: torch.Generator) -> Tree:
    """Return the `norms` [N] of a tensor's buckets, and the packed `levels` of its entries."""
    s = 2 ** (bits - 1) - 1
    rows = buckets(change.flatten(), size)
    norms = rows.norm(dim=1)
    drawn = levels(rows, norms, s, generator).flatten()[: change.numel()]
    return {"norms": norms, "levels": pack(drawn + s, bits)}


def dequantise(sent: Tree, like: Tensor, bits: int, size: int) -> Tensor:
    """Return the quantised change ||v||_2 sgn(v_i) xi_i, with the shape and type of `like`."""
    s = 2 ** (bits - 1) - 1
    drawn = unpack(sent["levels"], bits, like.numel()) - s
    rows = buckets(drawn.to(like.dtype), size) * sent["norms"][:, None] / s
    return rows.flatten()[: like.numel()].view_as(like)


def add(start: Tree, packed: Tree, bits: int, size: int) -> Tree:
    """Return the parameters `start` plus the quantised changes in `packed`."""
    result = {}
    for name, sent in packed.items():
        if isinstance(sent.get("levels"), Tensor):
            result[name] = start[name] + dequantise(sent, start[name], bits, size)
        else:
            result[name] = add(start[name], sent, bits, size)
    return result


@fl.hookimpl(wrapper=True)
def client_update(
    task: Task, received: Tree, clients: Cohort
) -> Generator[None, list[Update], list[Update]]:
    options: Options = task.wrappers["quantize"]
    packed = []
    for k, update in enumerate((yield)):
        sent = update.payload.get("params", {})
        params, start, rest = fl.split_by_received(sent, fl.unstack(received, k).get("params", {}))
        if not any(value.numel() for _, value in fl.leaves(params)):  # nothing to compress
            packed.append(update)
            continue

        generator = task.generator("quantize", clients.ids[k])
        codes = fl.tensor_map(
            lambda new, old, g=generator: quantise(new - old, options.bits, options.bucket, g),
            params,
            start,
        )
        payload = {**update.payload, "params": rest, "quantize": codes}
        packed.append(replace(update, payload=payload))
    return packed


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    options: Options = task.wrappers["quantize"]
    unpacked = []
    for update in (yield):
        payload = dict(update.payload)
        if "quantize" in payload:
            start = update.received["params"]
            codes = payload.pop("quantize")
            known = add(start, codes, options.bits, options.bucket)
            payload["params"] = fl.merge(payload["params"], known)
        unpacked.append(replace(update, payload=payload))
    return unpacked
