"""Random noise that nobody can predict, and the privacy budget of Gaussian noise.

The budget is computed by Opacus' accountant of Renyi differential privacy.
"""

import hashlib
import math
import warnings
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedloom.federated.task import Task
from fedloom.machine.extras import require_extra

# the number of draws per digest, since Python limits a digest's length
DRAWN_AT_ONCE = 1 << 16
ORDERS = [*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64), 128, 256, 512]


def secret_uniform(task: Task, purpose: str, shape: Sequence[int]) -> Tensor:
    """Draw float64 numbers from (0, 1) on the CPU; they follow from no seed.

    They are the SHAKE-256 digest of the job's 256-bit secret, `purpose` and the round, so each call
    within the job returns the same numbers. torch's generators are not used: their seeds have 32
    bits, and past draws reveal the next ones.
    """
    # compute 8 bytes for every number
    count = math.prod(shape)
    parts: list[bytes] = []
    for start in range(0, count, DRAWN_AT_ONCE):
        stream = task.secret + f"{purpose}:{task.round}:{start}".encode()
        numbers = min(DRAWN_AT_ONCE, count - start)
        parts.append(hashlib.shake_256(stream).digest(8 * numbers))

    # the upper 52 bits select an interval of (0, 1); take its middle
    bits = np.frombuffer(b"".join(parts), "<u8") >> 12
    return torch.from_numpy((bits + 0.5) * 2.0**-52).view(tuple(shape))


def gaussian_epsilon(noise: float, sampled: float, rounds: int, delta: float) -> float:
    """Return epsilon of (epsilon, delta)-differential privacy after some rounds.

    In every round, each client takes part with probability `sampled`, independently of the others.
    The sum over these clients gets Gaussian noise, whose standard deviation is `noise` > 0 times
    the sensitivity (Mironov et al., "Renyi Differential Privacy of the Sampled Gaussian Mechanism",
    2019).
    """
    if rounds == 0:
        return 0.0

    # imported here, because the import takes seconds
    require_extra("opacus")
    from opacus.accountants.analysis import rdp

    # hide Opacus' warning that other orders may bound epsilon more tightly
    spent = (rounds * _of_a_round(noise, sampled)).tolist()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is", UserWarning)
        epsilon = float(rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)[0])

    # for a large delta the conversion gives a number below 0; then (0, delta)-privacy holds
    return max(0.0, epsilon)


@cache
def _of_a_round(noise: float, sampled: float) -> np.ndarray:
    """Return the Renyi divergence of one round at each of ORDERS.

    The divergences of several rounds add up.
    """
    from opacus.accountants.analysis import rdp

    return np.asarray(rdp.compute_rdp(q=sampled, noise_multiplier=noise, steps=1, orders=ORDERS))
