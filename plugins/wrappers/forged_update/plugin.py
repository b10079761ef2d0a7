"""Forged updates: attackers send a multiple of what training changed, with noise.

Let G be what an attacker received, and X its model after training. Instead of X, the attacker sends
G + gamma (X - G) + N(0, sigma^2). Three attacks have this form:

- Scaling up (Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020, Eq. 3): if
  gamma is the number of clients divided by the server's learning rate, X replaces the mean.
- Sign flipping (Li et al., "RSA", AAAI 2019): gamma is negative. That paper multiplies what clients
  send by -4.
- Free riding (Fraboni et al., "Free-rider Attacks on Model Aggregation in Federated Learning",
  AISTATS 2021): gamma is 0. The attack is plain, or disguised by noise. In that paper the noise
  also shrinks over the rounds.

Choices:

- X is what the wrappers inside of this one make of the attacker's training. After an attack on its
  data, it is a poisoned model.
- Some parts of an upload are sent as they are: parameters that the client had not received, what is
  not a parameter, and running statistics of batch norm (a variance must not be negative).
- The wrapper refuses an upload in which it can forge nothing. Such an upload is already compressed,
  or the method's clients receive none of the parameters that they send.
- `scale: 1` without noise changes nothing, but leaves the attackers out of evaluations. This gives
  the row without an attack, measured on the same honest clients.
"""

from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update

from .options import Options


def forge_params(
    params: Tree, received: Tree, gamma: float, sigma: float, g: torch.Generator
) -> Tree:
    """Return G + gamma (X - G) + N(0, sigma^2) for all parameters X that were received as G.

    Other parameters, and running statistics of batch norm, stay as they are.

    Args:
        params: X, the parameters after training.
        received: G, the parameters before training.
        g: the generator that draws the noise.
    """
    known, start, rest = fl.split_by_received(params, received)
    statistics = {"statistics": known.pop("statistics")} if "statistics" in known else {}

    def forge(new: Tensor, old: Tensor) -> Tensor:
        return old + gamma * (new - old) + sigma * torch.randn(new.shape, generator=g).to(new)

    changed = fl.tensor_map(forge, known, {name: start[name] for name in known})
    return fl.merge(changed, fl.merge(rest, statistics))


@fl.hookimpl(wrapper=True)
def attackers(task: Task) -> Generator[None, list[int], list[int]]:
    options: Options = task.wrappers["forged_update"]
    return sorted({*(yield), *fl.draw_attackers(task, options.share)})


@fl.hookimpl(wrapper=True)
def client_update(
    task: Task, received: Tree, clients: Cohort
) -> Generator[None, list[Update], list[Update]]:
    updates = [*(yield)]
    options: Options = task.wrappers["forged_update"]
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
        params = forge_params(sent.get("params", {}), start, options.scale, options.noise, noise)
        updates[k] = replace(updates[k], payload=sent | {"params": params})
    return updates
