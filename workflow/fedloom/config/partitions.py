"""The keys that all partition schemes have."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Count, Keys, Number, Seed, Several, Share

PositiveShare = Annotated[Number, Field(gt=0, le=1)]
AT_LEAST = (
    "draw proportions again until every client has at least this number of training images (PFPT's "
    "released code); of kind client all are of equal size"
)
MinImages = Annotated[Count | None, Field(description=AT_LEAST)]


class Arrivals(Keys):
    """Classes, domains or clients that arrive in parts while a run trains."""

    of: Literal["classes", "domains", "clients"]
    """These are divided at random, by the seed, into parts that arrive one after another. Clients
    that train on a part are tested on its images as soon as it is there, and ever after."""
    at: Several[Annotated[int, Field(ge=2)]]
    """The rounds in which a further part arrives, ascending; so [11, 21] makes three parts."""
    keep: bool = False
    """Train on a part as long as the run lasts; by default until the next arrives, which is class-
    or domain-incremental learning, or clients that leave."""

    @model_validator(mode="after")
    def _ascending(self) -> "Arrivals":
        if self.at != sorted(self.at):
            raise ValueError(f"at must be ascending, got {self.at}; sort it")
        return self


class SchemeKind(Keys):
    """The keys of a scheme, beside `scheme` and `protocol`."""

    held_out: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Fraction of the clients that never trains and is only evaluated."""
    shots: Count | None = None
    """Few-shot training: at most this number of training images of every class that a client holds,
    drawn by the seed; default: all."""
    novel_classes: Share | Several[str] | None = None
    """Classes that no client trains on or sees the names of, for CLIP methods: their names, or the
    share of the last classes (0.5: base and new classes of CoOp's code)."""
    transfer_to: Several[str] | None = None
    """Labels of datasets whose test images CLIP methods are tested on, among their classes; they
    should share no images with the dataset that clients train on."""
    arrivals: Arrivals | None = None
    """Streams: classes, domains or clients that arrive while a run trains."""
    seed: Seed | None = None
    """Divide and draw shots by this seed in all runs; default: the run's own."""


class ClientScheme(SchemeKind):
    """The keys of a scheme that makes a given number of clients."""

    clients: Count


def novel_numbers(novel: float | list[str], classes: Sequence[str]) -> list[int]:
    """Return the numbers of the classes that no client trains on, of the dataset's `classes`."""
    if isinstance(novel, list):
        for name in novel:
            check_known(name, classes, "novel_classes: no class")
        numbers = [number for number, name in enumerate(classes) if name in novel]
    else:
        count = math.floor(len(classes) * novel + 1e-9)
        numbers = list(range(len(classes) - count, len(classes)))
    if not 0 < len(numbers) < len(classes) - 1:
        raise FedLoomError(
            f"novel_classes: must be one class or more and leave two to train on, got "
            f"{len(numbers)} of {len(classes)}; change the share or the list"
        )
    return numbers


def held_out_count(clients: int, partition: dict[str, Any], where: KeyPath) -> int:
    """Return how many clients of the partition at `where` never train.

    A share that rounds to no client is an error.
    """
    count = round(clients * partition["held_out"])
    if partition["held_out"] and not count:
        raise (where / "held_out").error(
            f"{partition['held_out']} of {clients} clients is less than one; raise it, or set 0"
        )
    return count


def participants(partition: dict[str, Any], where: KeyPath) -> int | None:
    """Return how many of a partition's clients train; None if its keys do not state its clients."""
    clients = partition.get("clients")
    if clients is None:
        return None
    return clients - held_out_count(clients, partition, where)
