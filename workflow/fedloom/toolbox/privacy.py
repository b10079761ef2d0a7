"""Unpredictable noise, and the privacy budget of Gaussian noise.

The budget is that of Opacus' accountant of Renyi differential privacy.
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
from fedloom.machine.extras import require

# draws of one digest, whose length Python bounds
DRAWN_AT_ONCE = 1 << 16
ORDERS = [*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64), 128, 256, 512]


def secret_uniform(task: Task, purpose: str, shape: Sequence[int]) -> Tensor:
    """Draw float64 numbers of (0, 1) on the CPU, which follow from no seed.

    They are SHAKE-256 of the job's secret of 256 bits, `purpose` and the round: the same at each
    call within the job. torch's generators use 32 bits, and their past draws tell the next ones.
    """
    # 8 bytes for every number
    count = math.prod(shape)
    parts: list[bytes] = []
    for start in range(0, count, DRAWN_AT_ONCE):
        stream = task.secret + f"{purpose}:{task.round}:{start}".encode()
        numbers = min(DRAWN_AT_ONCE, count - start)
        parts.append(hashlib.shake_256(stream).digest(8 * numbers))

    # the upper 52 bits, at the middle of their interval of (0, 1)
    bits = np.frombuffer(b"".join(parts), "<u8") >> 12
    return torch.from_numpy((bits + 0.5) * 2.0**-52).view(tuple(shape))


def gaussian_epsilon(noise: float, sampled: float, rounds: int, delta: float) -> float:
    """Compute epsilon of (epsilon, delta)-differential privacy after some rounds.

    Every round adds noise of standard deviation `noise` > 0 times the sensitivity to a sum over
    clients, of whom each takes part with probability `sampled`, independently of the others
    (Mironov et al., "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019).
    """
    if rounds == 0:
        return 0.0

    # imported here, since it takes seconds
    require("opacus")
    from opacus.accountants.analysis import rdp

    # Opacus warns that other orders may bound epsilon more tightly
    spent = (rounds * _of_a_round(noise, sampled)).tolist()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is", UserWarning)
        epsilon = float(rdp.get_privacy_spent(orders=ORDERS, rdp=spent, delta=delta)[0])

    # the conversion falls below 0 for a large delta, where (0, delta)-privacy holds
    return max(0.0, epsilon)


@cache
def _of_a_round(noise: float, sampled: float) -> np.ndarray:
    """Return the Renyi divergence of one round at each of ORDERS; those of rounds add up."""
    from opacus.accountants.analysis import rdp

    return np.asarray(rdp.compute_rdp(q=sampled, noise_multiplier=noise, steps=1, orders=ORDERS))
