"""Forged updates: attackers send a multiple of what training changed, with noise.

In place of its model X, an attacker sends G + gamma (X - G) + N(0, sigma^2), where G is what it
received. Bagdasaryan et al., "How To Backdoor Federated Learning" (AISTATS 2020), Eq. 3, scale up:
with gamma the number of clients over the server's rate, X replaces the mean. A negative gamma is
the sign flipping of Li et al., "RSA" (AAAI 2019), who scale by -4 what clients send. Gamma 0 is a
free rider of Fraboni et al., "Free-rider Attacks on Model Aggregation in Federated Learning"
(AISTATS 2021), plain or disguised by noise, which in the paper also shrinks with the rounds.
Choices:

- What the attacker trained is what the wrappers inside of this one make of it: a poisoned model
  behind an attack on its data.
- Parameters that the client had not received, what it uploads beside parameters and running
  statistics of batch norm, of which a variance must not be negative, are sent as they are.
- The wrapper refuses an upload in which it can forge nothing: one that is compressed already, or
  one of a method whose clients receive none of the parameters that they send.
- `scale: 1` without noise changes nothing, but leaves the attackers out of evaluations: the row
  without an attack that is measured on the same honest clients.
"""

from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update


def forged(params: Tree, received: Tree, gamma: float, sigma: float, g: torch.Generator) -> Tree:
    """Return parameters with another change of those that the client had received."""
    known, start, rest = fl.split_by_received(params, received)
    statistics = {"statistics": known.pop("statistics")} if "statistics" in known else {}

    def forge(new: Tensor, old: Tensor) -> Tensor:
        return old + gamma * (new - old) + sigma * torch.randn(new.shape, generator=g).to(new)

    changed = fl.tensor_map(forge, known, {name: start[name] for name in known})
    return fl.merge(changed, fl.merge(rest, statistics))


@fl.hookimpl(wrapper=True)
def attackers(task: Task) -> Generator[None, list[int], list[int]]:
    return sorted({*(yield), *fl.draw_attackers(task, task.wrappers["forged_update"].share)})


@fl.hookimpl(wrapper=True)
def client_update(
    task: Task, received: Tree, clients: Cohort
) -> Generator[None, list[Update], list[Update]]:
    updates = [*(yield)]
    options = task.wrappers["forged_update"]
    attacking = fl.draw_attackers(task, options.share)

    for k, client in enumerate(clients.ids):
        if client not in attacking:
            continue
        sent = updates[k].payload
        start = fl.unstack(received, k).get("params", {})
        if [*fl.leaves(sent)] and not fl.split_by_received(sent.get("params", {}), start)[0]:
            raise fl.FedLoomError(
                f"forged_update: client {client} must send a parameter that it had "
                "received, got none; list forged_update before wrappers that compress"
            )

        noise = task.generator("forged_update", client)
        params = forged(sent.get("params", {}), start, options.scale, options.noise, noise)
        updates[k] = replace(updates[k], payload=sent | {"params": params})
    return updates
