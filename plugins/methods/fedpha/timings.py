"""How long the projection takes beside a client's training (FedPHA, Table 3)."""

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

REPEATS = 10  # the paper averages over ten rounds


def milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Return how long `work` takes on the wall clock, what it started on a GPU included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1000 * (perf_counter() - start)


def timings(
    decompose: Callable[[Tensor], Tensor],
    train: Callable[[], object],
    context: Tensor,
    local: Tensor,
    clients: int,
) -> dict[str, list]:
    """Return `stage` and `milliseconds`: a row per repetition, of one client's part of a round.

    Args:
        decompose: makes the projection [d, d] of the received context [T, d].
        train: trains a cohort for a round; it is called once, and divided by `clients` in it.
        local: the client's own context [L, d].
    """
    projection = decompose(context)  # the first call of a GPU's library takes seconds
    stages = {
        "decomposition": lambda: decompose(context),
        "projection": lambda: local @ projection,
    }
    device = context.device
    rows = [(s, milliseconds(work, device)) for s, work in stages.items() for _ in range(REPEATS)]
    rows.append(("training", milliseconds(train, device) / clients))
    return {"stage": [stage for stage, _ in rows], "milliseconds": [ms for _, ms in rows]}
