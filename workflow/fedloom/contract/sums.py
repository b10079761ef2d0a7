"""Whether a method's server uses nothing of the updates but the mean that it declares."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedloom.common.tensors import tensor_map
from fedloom.federated.task import Task, Update
from fedloom.hooks.manifest import Plugin

SHIFT = 30.0  # standard deviation of what is added to each number


def declarations(method: Plugin) -> Iterator[Plugin]:
    """Yield the method with defaults for which it declares a mean, in each way that it does.

    Every option that a declaration names is given each of the values that it is named with.
    """
    named: dict[str, set] = {}
    conditions = method.aggregation.values() if isinstance(method.aggregation, dict) else ()
    for condition in conditions:
        for option, value in condition.items() if isinstance(condition, dict) else ():
            named.setdefault(option, {method.option_schemas[option]["default"]}).add(value)
    for values in itertools.product(*(sorted(values, key=str) for values in named.values())):
        one = method.with_defaults(dict(zip(named, values, strict=True)))
        if one.aggregation_with(one.options({}, one.name)) is not None:
            yield one


def shift(task: Task, updates: list[Update], weighted: bool) -> list[Update]:
    """Add to every floating-point number of each payload what leaves the updates' sum as it is.

    Args:
        weighted: leave the sum weighted by numbers of training images, else the plain one.
    """
    weights = torch.tensor([float(u.num_examples if weighted else 1) for u in updates])
    shares, generator = weights / weights.sum(), task.generator("sum")

    def draw(value: Tensor) -> Tensor:  # [K, ...], of weighted mean 0 over clients
        noise = SHIFT * torch.randn(len(updates), *value.shape, generator=generator)
        return noise - torch.einsum("k,k...->...", shares, noise)

    def add(value: Tensor, drawn: Tensor, k: int) -> Tensor:
        return value + drawn[k] if value.is_floating_point() else value

    drawn = tensor_map(draw, updates[0].payload)
    return [
        replace(update, payload=tensor_map(partial(add, k=k), update.payload, drawn))
        for k, update in enumerate(updates)
    ]
