"""The keys that all partition schemes have."""

from typing import Annotated, Any

from pydantic import Field

from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Count, Keys, Natural, Number

PositiveShare = Annotated[Number, Field(gt=0, le=1)]
MinImages = Annotated[
    Count | None,
    Field(
        description="draw proportions again until every client has at least this number of "
        "training images (PFPT's released code); of kind client all are of equal size"
    ),
]


class SchemeKind(Keys):
    """The keys of a scheme, beside `scheme` and `protocol`."""

    held_out: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Fraction of the clients that never trains and is only evaluated."""
    shots: Count | None = None
    """Few-shot training: at most this number of images of every class that a client holds, drawn by
    the seed; the test images stay; default: all."""
    seed: Natural | None = None
    """Divide and draw shots by this seed in all runs, whatever theirs; default: the run's own, so
    that every seed has another partition."""


class ClientScheme(SchemeKind):
    """The keys of a scheme that makes a given number of clients."""

    clients: Count


def held_out_count(clients: int, partition: dict[str, Any]) -> int:
    """Return how many of a partition's clients never train; refuse a share below one client."""
    count = round(clients * partition["held_out"])
    if partition["held_out"] and not count:
        raise FedLoomError(
            f"held_out: {partition['held_out']} of {clients} clients is none; raise it, or set 0"
        )
    return count
