"""What a scheme returns: a client for every image, or the groups that are divided by themselves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Divide = Callable[[np.ndarray, dict[str, Any], np.random.Generator], np.ndarray]


class Group(NamedTuple):
    """Images that are divided by themselves.

    Attributes:
        name: as an error has it, after "client 3"; " of domain 'ink'", for one.
        images: bool [N] of all images.
        divide: returns the client of every training image of the group, from 0 on.
        settings: what `divide` takes; `clients` is the number of the group's clients.
    """

    name: str
    images: np.ndarray
    divide: Divide
    settings: dict[str, Any]
