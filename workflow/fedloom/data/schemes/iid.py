"""Deal images at random."""

import numpy as np

from fedloom.common.json_types import JsonDict
from fedloom.config.partitions import ClientScheme


class Iid(ClientScheme):
    """Images are dealt at random to clients of equal size."""


def divide(labels: np.ndarray, settings: JsonDict, rng: np.random.Generator) -> np.ndarray:
    """Deal images at random to clients; their numbers of images differ by at most one."""
    return rng.permutation(np.arange(len(labels)) % settings["clients"])
