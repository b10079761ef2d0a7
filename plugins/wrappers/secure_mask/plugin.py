"""Secure aggregation: clients send integers under pairwise masks, and the server learns their sum.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017),
Section 4.1.

1. Every parameter is rounded to a multiple of 2^-fraction_bits, and becomes an integer modulo R =
   2^32.
2. Every pair of a round's clients u < v draws a mask for each parameter, uniform in 0 ... R - 1.
   Client u adds it and client v subtracts it, modulo R.
3. So a single upload is uniform, and the sum of all uploads is exactly the sum of the integers.
   From it, the server computes a mean.

This mean differs from the mean of the parameters by at most 2^-(fraction_bits + 1), times the
number of clients that arrived, divided by the sum of their weights. Choices:

- The server gets the mean as every client's parameters. So any mean that it takes of them is this
  one. If the method weights clients by their training images, each client multiplies its parameters
  by its share of the round's images, which the server announces.
- If an upload is lost, the server removes its masks from the others. It can do so with the shares
  of seeds in Section 4.2.
- The paper's second mask protects uploads that come late. It is left out, because no upload is late
  here.
- Seeds follow from the run's seed, where the protocol agrees on keys. Keys and shares are not
  counted as bytes.
- If a round has only one client, this client is not hidden.
- A method that uploads more than parameters is refused.
"""

from collections.abc import Generator, Iterable
from dataclasses import replace

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update

from .options import Options

MODULUS = 2**32  # R


def to_signed(value: Tensor) -> Tensor:
    """Map integers (int64) modulo R to the numbers from -R / 2 to R / 2 - 1."""
    return (value + MODULUS // 2) % MODULUS - MODULUS // 2


def weights(task: Task) -> dict[int, float]:
    """Return the factor by which each of the round's n clients multiplies its parameters.

    It is 1, or n times the client's share of the round's images if the method weights clients. The
    mean of the factors is 1.
    """
    images = {k: len(task.data.train[k]) for k in task.selected}
    if task.aggregation != "weighted":
        return dict.fromkeys(images, 1.0)
    return {k: len(images) * n / sum(images.values()) for k, n in images.items()}


def encode(task: Task, client: int, params: Tree) -> Tree:
    """Return a client's parameters times its factor as multiples of 2^-fraction_bits (int64).

    Raises:
        FedLoomError: a parameter is so large that the sum over clients may exceed R / 2.
    """
    options: Options = task.wrappers["secure_mask"]
    bits = options.fraction_bits
    factor = weights(task)[client]
    room = 2 ** (31 - bits) / len(task.selected)
    largest = factor * float(fl.flatten(params).abs().max())
    if largest >= room:
        raise fl.FedLoomError(
            f"secure_mask: client {client}: a parameter is {largest:.3g}, but with fraction_bits: "
            f"{bits} and {len(task.selected)} clients it must be below {room:.3g}; lower "
            "options.fraction_bits"
        )
    scale = factor * 2**bits
    return fl.tensor_map(lambda value: (value.double() * scale).round().long(), params)


def add_masks(task: Task, client: int, others: Iterable[int], values: Tree, sign: int) -> Tree:
    """Return a client's integers plus the masks of its pairs with `others`.

    Args:
        values: the integers; keys must be sorted, because masks are drawn in the order of keys.
        sign: 1 to add the masks, -1 to remove them.
    """
    for other in others:
        low = min(client, other)
        high = max(client, other)
        generator = task.generator("secure_mask", low, high)
        side = sign if client == low else -sign

        def add_mask(value: Tensor, g: torch.Generator = generator, s: int = side) -> Tensor:
            return value + s * torch.randint(MODULUS, value.shape, generator=g).to(value.device)

        values = fl.tensor_map(add_mask, values)
    return values


@fl.hookimpl(wrapper=True)
def client_update(task: Task, clients: Cohort) -> Generator[None, list[Update], list[Update]]:
    sent = []
    for client, update in zip(clients.ids, (yield), strict=True):
        params = fl.merge(fl.require_params_alone(task, "secure_mask", update), {})  # sorts keys
        others = [k for k in task.selected if k != client]
        masked = add_masks(task, client, others, encode(task, client, params), 1)
        wire = fl.tensor_map(lambda value: to_signed(value).to(torch.int32), masked)
        sent.append(replace(update, payload={"params": wire}))
    return sent


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    updates = yield
    arrived = [update.client for update in updates]
    lost = sorted(set(task.selected) - set(arrived))

    # remove the masks that arrived clients share with lost ones; the others cancel in the sum
    integers = [
        add_masks(
            task, u.client, lost, fl.tensor_map(Tensor.long, fl.merge(u.payload["params"], {})), -1
        )
        for u in updates
    ]
    factors = weights(task)
    options: Options = task.wrappers["secure_mask"]
    scale = 2**options.fraction_bits * sum(factors[k] for k in arrived)

    def mean(*values: Tensor) -> Tensor:
        return (to_signed(torch.stack(values).sum(0)).double() / scale).float()

    payload = {"params": fl.tensor_map(mean, *integers)}
    return [replace(update, payload=payload) for update in updates]
