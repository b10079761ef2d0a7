"""Seed all randomness: (seed, purpose, ids...) determines a stream, whatever the order of calls."""

import hashlib

import numpy as np


def stream_seed(seed: int, purpose: str, *ids: int) -> int:
    """Return the 63-bit seed of a stream.

    Args:
        seed: the run's seed.
        purpose: what the numbers are drawn for.
        ids: further numbers that tell streams apart, such as a round and a client.
    """
    name = ":".join(map(str, (seed, purpose, *ids)))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


def numpy_generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """Return NumPy's generator for a stream (see `stream_seed`)."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, purpose, *ids)))


def torch_generator(seed: int, purpose: str, *ids: int):
    """Return torch's generator for a stream (see `stream_seed`).

    The generator is always on the CPU, so that runs on CPU and GPU draw the same numbers.
    """
    # imported here, so that partitioning and parsing the config need no torch
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, purpose, *ids))
