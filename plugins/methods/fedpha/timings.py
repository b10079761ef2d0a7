"""How long the projection takes beside a client's training (FedPHA, Table 3)."""

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

REPEATS = 10  # the paper averages over ten rounds


def milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall-clock time of `work` in ms, until a GPU has finished what it was given."""
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
    """Return the columns `stage` and `milliseconds`, for one client in one round.

    The stages "decomposition" and "projection" have one row per repetition. The stage "training"
    has a single row.

    Args:
        decompose: a function that returns the projection [d, d] of the global context [T_g, d].
        train: a function that trains a cohort for a round. It is called once, and its time is
            divided by the number of `clients` in the cohort.
        context: the global context [T_g, d].
        local: the client's local context [L, d].
    """
    projection = decompose(context)  # the first call on a GPU takes seconds
    stages = {
        "decomposition": lambda: decompose(context),
        "projection": lambda: local @ projection,
    }
    device = context.device
    rows = [(s, milliseconds(work, device)) for s, work in stages.items() for _ in range(REPEATS)]
    rows.append(("training", milliseconds(train, device) / clients))
    return {"stage": [stage for stage, _ in rows], "milliseconds": [ms for _, ms in rows]}
