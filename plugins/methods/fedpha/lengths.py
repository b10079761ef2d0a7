"""How many tokens the local contexts of FedPHA have."""

from typing import Any

import torch

import fedloom.toolbox as fl

from .options import Options

Task = fl.Task[Any, Options]


def possible_lengths(options: Options) -> list[int]:
    """Return the lengths that local contexts may have; for drawn ones, the smallest and largest."""
    return options.random_lengths or options.lengths or [options.length]


def longest_length(options: Options) -> int:
    """Return the greatest length that a local context may have."""
    return max(possible_lengths(options))


def local_length(task: Task, client: int) -> int:
    """Return the length of a client's local context.

    If lengths are drawn, `task.round` must be 0, as in `init_client`.
    """
    options = task.options
    if options.random_lengths:
        low, high = options.random_lengths
        return int(torch.randint(low, high + 1, (), generator=task.generator("length", client)))
    if options.lengths:
        entry = fl.entry_of(max(client, 0), task.data.num_clients, len(options.lengths))
        return options.lengths[entry]
    return options.length


def check_options(task: Task) -> None:
    """Check that the options about lengths fit each other, the clients and the text tower.

    Raises:
        FedLoomError: they do not fit; the message names the option.
    """
    options = task.options
    clients = task.data.num_clients
    if options.random_lengths and options.lengths:
        raise fl.FedLoomError(
            "fedpha: only one of the options lengths and random_lengths may be set; remove one"
        )
    if options.lengths and clients % len(options.lengths):
        raise fl.FedLoomError(
            f"fedpha: option lengths must have a number of entries that divides {clients}, the "
            f"number of clients, got {len(options.lengths)}; add or remove some"
        )
    drawn = options.random_lengths
    if drawn and (len(drawn) == 1 or drawn[0] > drawn[1]):
        raise fl.FedLoomError(
            f"fedpha: option random_lengths must be the least and the most length, got {drawn}; "
            "write them in this order"
        )
    fl.check_lengths(task, possible_lengths(options), options.words)
