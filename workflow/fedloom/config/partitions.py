"""Define the keys that all partition schemes have, and count the clients that they hold out."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedloom.common.errors import FedLoomError, check_known
from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Count, Keys, Number, OpenShare, Seed, Several

AT_LEAST = (
    "Draw proportions again until every client has at least this number of training images (PFPT's "
    "released code). It changes nothing with `kind: client`, where all clients are of equal size."
)
MinImages = Annotated[Count | None, Field(description=AT_LEAST)]


class Arrivals(Keys):
    """Classes, domains or clients that arrive in parts while a run trains."""

    of: Literal["classes", "domains", "clients"]
    """Says what is divided into parts that arrive one after another. The seed determines the
    division. Clients that train on a part are tested on its images from its arrival to the end of
    the run."""
    at: Several[Annotated[int, Field(ge=2)]]
    """Rounds in which a further part arrives, in ascending order. The first part is there from
    round 1, so [11, 21] makes three parts."""
    keep: bool = False
    """Train on a part until the end of the run. By default, clients train on a part until the next
    one arrives: class- or domain-incremental learning, or clients that leave."""

    @model_validator(mode="after")
    def _ascending(self) -> "Arrivals":
        if self.at != sorted(self.at):
            raise ValueError(f"at must be ascending, got {self.at}; sort it")
        return self


class SchemeKind(Keys):
    """The keys of a scheme, beside `scheme` and `protocol`."""

    held_out: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Share of the clients that never train and are only evaluated."""
    shots: Count | None = None
    """Few-shot training: every client keeps at most this number of training images of each class
    that it holds. They are drawn by the seed. Default: all images."""
    novel_classes: OpenShare | Several[str] | None = None
    """Classes on which CLIP methods are tested: no client trains on them or sees their names. It is
    a list of names, or the share of the classes, taken from the end, that are novel (0.5: base and
    new classes of CoOp's code)."""
    transfer_to: Several[str] | None = None
    """Labels of other datasets. CLIP methods are tested on the test images of each, among its
    classes. These datasets should share no images with the dataset that clients train on."""
    arrivals: Arrivals | None = None
    """Data streams: classes, domains or clients that arrive while a run trains."""
    seed: Seed | None = None
    """Seed by which images are divided and shots are drawn, in all runs alike. Default:
    `study.fixed_seeds.partition`, or else the run's seed."""


class ClientScheme(SchemeKind):
    """The keys of a scheme that makes a given number of clients."""

    clients: Count
    """Number of clients."""


def novel_numbers(novel: float | list[str], classes: Sequence[str]) -> list[int]:
    """Return the positions, in the list `classes`, of the classes that no client trains on.

    `novel` is a list of their names, or a share of all classes, which is taken from the end.

    Raises:
        FedLoomError: a name is unknown, no class is novel, or fewer than two classes are left.
    """
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


def held_out_count(clients: int, partition: JsonDict, where: KeyPath) -> int:
    """Return how many clients of the partition at `where` never train.

    Raises:
        InvalidKeyError: the share is not 0, but rounds to no client.
    """
    count = round(clients * partition["held_out"])
    if partition["held_out"] and not count:
        raise (where / "held_out").error(
            f"{partition['held_out']} of {clients} clients is less than one; raise it, or set 0"
        )
    return count


def participants(partition: JsonDict, where: KeyPath) -> int | None:
    """Return how many of a partition's clients train; None if its keys do not state its clients."""
    clients = partition.get("clients")
    if clients is None:
        return None
    return clients - held_out_count(clients, partition, where)
