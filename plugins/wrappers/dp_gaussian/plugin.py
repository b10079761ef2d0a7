"""DP-FedAvg: clipped changes, Gaussian noise on their sum, and the budget that it spends.

This is Algorithm 1 of McMahan et al., "Learning Differentially Private Recurrent Language Models"
(ICLR 2018). In every round

1. each client takes part with probability q;
2. a client's change of the parameters is scaled down to the norm S if its norm is larger;
3. the server adds N(0, (z S)^2) to every entry of the sum of the changes, and divides by the
   expected number of clients, which is q times all clients.

What is protected is a whole client: two data sets are neighbours if one of them has one client
more. The column `epsilon` of rounds.parquet is epsilon for `delta` after each round. It follows
from Renyi differential privacy (Mironov et al., 2019), and is computed by Opacus' accountant.
Choices:

- The clip is over all parameters together (the paper's flat clipping). Clients have equal weights
  (its w_k = 1). The server gets the noisy mean as every client's parameters. So any mean that it
  takes of them is this one.
- A client's change is clipped where the client trains, and again where it enters the sum. The
  second time, the server subtracts in float64 what it sent, because the client's upload is rounded
  to float32. So no client adds more than S to the sum, up to the rounding of float64 (1e-12 of S).
- Attackers that are listed before this wrapper are clipped like all clients, both times. No other
  wrapper may be used with it.
- If no client is drawn, one client trains nevertheless, because the runtime needs one. Its change
  is not used, and the server gets only the noise.
- With `sampling: study`, the method or the study selects any number of clients in any way. Epsilon
  is then that of noise without sampling (q = 1). Two data sets are then neighbours if one of them
  has the changes of one client replaced by zero.
- `randomness: seeded` draws noise and clients from the seed. `secret` draws them from a key that
  the operating system gave the job. Noise is added in float64.
- What a client reports for logs (its training loss and the norm of its change) is not protected
  here. A real federation would not send it. Class prototypes that a study computes before round 1
  are not protected either.
- Three kinds of methods are refused: those that upload more than parameters, those that upload
  running statistics of batch norm, and those whose clients did not all receive the same parameters.
"""

from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Cohort, Task, Tree, Update

from .options import Options

ATTACKS = ("label_flip", "backdoor", "forged_update")  # an attacker needs no other client's update
READERS = {"audit"}  # wrappers that leave uploads as they are


def expected_clients(task: Task) -> int:
    """Return the expected number of clients in a round: q times all participating clients."""
    return min(task.clients_per_round, len(task.data.participating))


def draw_clients(task: Task) -> set[int]:
    """Draw the clients that take part in this round, each with probability q."""
    ids = task.data.participating
    purpose = "dp_gaussian: sampling"
    options: Options = task.wrappers["dp_gaussian"]
    if options.randomness == "secret":
        uniform = fl.secret_uniform(task, purpose, [len(ids)])
    else:
        uniform = torch.rand(len(ids), generator=task.selecting().generator(purpose))
    q = expected_clients(task) / len(ids)
    return {k for k, u in zip(ids, uniform.tolist(), strict=True) if u < q}


def draw_noise(task: Task, count: int) -> Tensor:
    """Draw this round's noise from N(0, 1), float64 [D] with D = `count`."""
    purpose = "dp_gaussian: noise"
    options: Options = task.wrappers["dp_gaussian"]
    if options.randomness == "secret":
        return torch.special.ndtri(fl.secret_uniform(task, purpose, [count]))
    return torch.randn(count, generator=task.generator(purpose)).double()


def parameter_change(task: Task, update: Update, received: Tree) -> tuple[Tensor, Tree]:
    """Return the change of the parameters by training, and the parameters before it.

    The change is a vector [D] of float64.

    Raises:
        FedLoomError: the upload has something else than parameters that the client had received.
    """
    params = fl.require_params_alone(task, "dp_gaussian", update)
    if "statistics" in params:
        raise fl.FedLoomError(
            f"dp_gaussian: method {task.method} uploads batch norm's running statistics, whose "
            "size would decide how far weights are clipped; use a backbone without batch norm"
        )
    known, start, rest = fl.split_by_received(params, received.get("params", {}))
    if rest:
        raise fl.FedLoomError(
            f"dp_gaussian: method {task.method} uploads '{next(iter(rest))}', which its clients "
            "had not received, so that there is no change of it to clip; remove the wrapper"
        )
    return fl.flatten(known).double() - fl.flatten(start), start


def clip_change(change: Tensor, bound: float) -> tuple[Tensor, float]:
    """Return the change [D], scaled down to the norm `bound` if it is longer, and its own norm."""
    norm = change.norm()
    return change * fl.clip_factors(norm, bound), float(norm)


@fl.hookimpl(wrapper=True)
def select_clients(task: Task, available: list[int]) -> Generator[None, list[int], list[int]]:
    chosen = yield
    options: Options = task.wrappers["dp_gaussian"]
    if options.sampling == "study":
        return chosen
    mine = draw_clients(task)
    return [k for k in available if k in mine] or available[:1]


@fl.hookimpl(wrapper=True)
def client_update(
    task: Task, received: Tree, clients: Cohort
) -> Generator[None, list[Update], list[Update]]:
    options: Options = task.wrappers["dp_gaussian"]
    bound = options.clip
    sent = []
    for k, update in enumerate((yield)):
        change, start = parameter_change(task, update, fl.unstack(received, k))
        change, norm = clip_change(change, bound)
        params = fl.unflatten(fl.flatten(start) + change, start)
        metrics = update.metrics | {"update_norm": norm, "clipped": float(norm > bound)}
        sent.append(replace(update, payload={"params": params}, metrics=metrics))
    return sent


@fl.hookimpl(wrapper=True)
def receive(task: Task) -> Generator[None, list[Update], list[Update]]:
    updates = yield
    options: Options = task.wrappers["dp_gaussian"]

    # start the sum of all changes with the noise
    start = parameter_change(task, updates[0], updates[0].received)[1]
    before = fl.flatten(start)
    taking_part = set(task.selected) if options.sampling == "study" else draw_clients(task)
    total = options.noise * options.clip * draw_noise(task, before.numel()).to(before.device)

    # add the clipped changes
    for update in updates:
        change, own = parameter_change(task, update, update.received)
        if not torch.equal(before, fl.flatten(own)):
            raise fl.FedLoomError(
                f"dp_gaussian: method {task.method} sends clients different parameters, so that "
                "the sum of their changes does not change the server; remove the wrapper"
            )
        if update.client in taking_part:
            total = total + clip_change(change, options.clip)[0]

    # every update becomes the same mean
    payload = {"params": fl.unflatten(before + total / expected_clients(task), start)}
    return [replace(update, payload=payload) for update in updates]


def with_epsilon(task: Task, server: Tree) -> Tree:
    """Return the server's state with the metrics `epsilon`, spent so far, and `secret_noise`."""
    options: Options = task.wrappers["dp_gaussian"]
    poisson = options.sampling == "poisson"
    q = expected_clients(task) / len(task.data.participating) if poisson else 1.0
    epsilon = fl.gaussian_epsilon(options.noise, q, task.round, options.delta)
    spent = {"epsilon": epsilon, "secret_noise": float(options.randomness == "secret")}
    return {**server, "metrics": {**server.get("metrics", {}), **spent}}


@fl.hookimpl(wrapper=True)
def init_server(task: Task) -> Generator[None, Tree, Tree]:
    names = [*task.wrappers]
    inside = names[: names.index("dp_gaussian")]  # listed before: their result is clipped
    others = sorted({*names} - {"dp_gaussian"} - READERS - {*inside}.intersection(ATTACKS))
    if others:
        raise fl.FedLoomError(
            f"dp_gaussian: the wrapper {others[0]} may change a clipped update, or make a client's "
            "part of the sum depend on the others', and epsilon would be false; use it alone, or "
            f"behind an attack ({', '.join(ATTACKS)})"
        )
    return with_epsilon(task, (yield))


@fl.hookimpl(wrapper=True)
def aggregate(task: Task) -> Generator[None, Tree, Tree]:
    return with_epsilon(task, (yield))
