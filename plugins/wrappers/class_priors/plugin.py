"""Class priors: a client adds what it knows of its own classes to the logits of any method.

Let p_c be the share of class c in a client's training images, and n_c their number.

- At test, tau log(max(p_c, floor)) is added to the logit of class c. With tau = 1, the softmax is
  then Bayes' rule under the client's shares, for a model that was trained under equal ones (Saerens
  et al., Neural Computation 2002).
- In training, the same is added inside the client's loss (`form: shares`). The logits themselves
  then learn to be those under equal shares: logit adjustment (Menon et al., ICLR 2021), or with
  tau = 1 the balanced softmax (Ren et al., NeurIPS 2020).
- `form: fedlc` adds -tau n_c^(-1/4) in training instead (FedLC: Zhang et al., ICML 2022). FedLC
  adds nothing at test, which is `test: none`.

Choices:

- The floor holds for both forms: a class of fewer than floor n images counts as one of floor n
  images, where n is the number of all images of the client. Without a floor, the logit of a class
  without images would be minus infinity, and the class would drop out of the loss.
- Everything is taken relative to the client's largest value, so that the most frequent class gets
  0. This changes no softmax, and equal shares change no bit.
- Clients that never trained use the shares of their own training images, as in PEP-FedPT. A client
  without images has equal shares. On a stream, all images that have arrived count. The shares of
  attackers in training are those of their false labels.
- The server's model adds nothing. Neither do clients in the global test, where they answer in place
  of a server's model that the method lacks: the images there are not the client's.
- Only the cross-entropy of a method's loss gets the shares. Its other terms stay as they are.
"""

from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Answers, Cohort, Task, Update

from .label_shift import answers_under_label_shift
from .options import Options


def relative(values: Tensor) -> Tensor:
    """Return the values [K, C] minus the largest of each client, so that the largest is 0."""
    return values - values.max(1, keepdim=True).values


def log_shares(shares: Tensor, tau: float, floor: float) -> Tensor:
    """Return tau log(max(share, floor)) [K, C] for shares [K, C], relative to the largest."""
    return relative(tau * shares.clamp(min=floor).log())


def calibrations(shares: Tensor, images: Tensor, tau: float, floor: float) -> Tensor:
    """Return FedLC's -tau n_c^(-1/4) [K, C], relative to the largest.

    Args:
        shares: share of every class in each client's images [K, C].
        images: number of each client's images [K]; at least 1.
        tau: factor.
        floor: smallest share of a class.
    """
    counts = shares.clamp(min=floor) * images[:, None]
    return relative(-tau * counts ** (-1 / 4))


@fl.hookimpl(wrapper=True)
def training_offsets(task: Task, clients: Cohort) -> Generator[None, Tensor | None, Tensor | None]:
    before = yield
    options: Options = task.wrappers["class_priors"]
    if not options.train:
        return before
    if options.form == "shares":
        return total(before, log_shares(clients.priors, options.tau, options.floor))

    # a client that has no image yet counts as one with a single image
    counts = [max(len(task.data.train_so_far[client]), 1) for client in clients.ids]
    images = torch.tensor(counts, device=clients.priors.device)
    return total(before, calibrations(clients.priors, images, options.tau, options.floor))


@fl.hookimpl(wrapper=True)
def answer_offsets(task: Task, clients: Cohort) -> Generator[None, Tensor | None, Tensor | None]:
    before = yield
    options: Options = task.wrappers["class_priors"]
    if options.test == "none":
        return before
    return total(before, log_shares(clients.priors, options.tau, options.floor))


def total(before: Tensor | None, offsets: Tensor) -> Tensor:
    """Return the offsets plus those of the wrappers inside of this one."""
    if before is None:
        return offsets
    return before + offsets


@fl.hookimpl(wrapper=True)
def client_update(clients: Cohort) -> Generator[None, list[Update], list[Update]]:
    updates = yield
    if clients.logit_offsets is None:
        return updates

    # a guess that knows the shares has another loss than one that does not
    chances = clients.logit_offsets.double().log_softmax(1)
    guesses = -(clients.priors.double() * chances).sum(1)
    changed: list[Update] = []
    for update, guess in zip(updates, guesses.tolist(), strict=True):
        changed.append(replace(update, metrics=update.metrics | {"guessing_loss": guess}))
    return changed


@fl.hookimpl(wrapper=True)
def audit_table(
    task: Task, answers: Answers, name: str
) -> Generator[None, dict | None, dict | None]:
    """Return the table `label_shift`, whose offsets have this wrapper's `tau` and `floor`."""
    table = yield
    if name != "label_shift":
        return table
    options: Options = task.wrappers["class_priors"]
    offsets = log_shares(task.data.priors, options.tau, options.floor)
    return answers_under_label_shift(task, answers, offsets)
