"""All randomness: a stream for every (seed, purpose, ids...), whatever the order of calls."""

import hashlib

import numpy as np


def stream_seed(seed: int, purpose: str, *ids: int) -> int:
    """Return the 63-bit seed of the stream of `purpose` (and, say, round and client)."""
    name = ":".join(map(str, (seed, purpose, *ids)))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


def numpy_generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """Return a generator for the stream of `purpose`."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, purpose, *ids)))


def torch_generator(seed: int, purpose: str, *ids: int):
    """Return a CPU generator, so that CPU and GPU runs draw the same numbers."""
    # here, so that partitioning and parsing the config need no torch
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, purpose, *ids))
