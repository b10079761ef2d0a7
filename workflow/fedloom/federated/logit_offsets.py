"""Add a client's offsets to the logits of its losses, such as the log of its class shares.

A method's loss calls `cross_entropy` of the toolbox with logits and labels alone. So the runtime
announces the offsets of the cohort around its calls of a plugin, and `cross_entropy` looks them up.
Outside of such a call, and for clients without offsets, logits stay as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor

from fedloom.common.errors import FedLoomError


@dataclass
class Announced:
    """The offsets of the clients whose losses are being computed.

    Attributes:
        offsets: [K, C], what is added to the logits of each client's images; None: nothing.
        used: True as soon as they have been added to some logits.
    """

    offsets: Tensor | None
    used: bool = False


_current: ContextVar[Announced | None] = ContextVar("logit offsets", default=None)


@contextmanager
def adding_to_logits(offsets: Tensor | None) -> Iterator[Announced]:
    """Let `add_offsets` add these offsets [K, C] inside the `with` block; None: add nothing.

    A block inside of another one replaces the offsets of the outer one until it ends.
    """
    announced = Announced(offsets)
    token = _current.set(announced)
    try:
        yield announced
    finally:
        _current.reset(token)


def add_offsets(logits: Tensor) -> Tensor:
    """Return the logits [K, B, C] plus the announced offsets of their clients [K, C].

    Raises:
        FedLoomError: the logits are those of other clients, or of other classes.
    """
    announced = _current.get()
    if announced is None or announced.offsets is None:
        return logits

    clients, classes = announced.offsets.shape
    if logits.ndim != 3 or (logits.shape[0], logits.shape[2]) != (clients, classes):
        raise FedLoomError(
            f"cross_entropy: logits must be [{clients}, images, {classes}], one row for each "
            f"client and each class that has an offset, got {list(logits.shape)}; compute the "
            "loss for the clients of the cohort, or declare takes_logit_offsets = false in "
            "method.toml"
        )
    announced.used = True
    return logits + announced.offsets[:, None].to(logits.dtype)
