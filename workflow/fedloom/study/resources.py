"""Memory and time that jobs request from a cluster, from what they compute (fedloom.study.work).

A core does RATE operations per second: features of 50,000 images took a ViT-B/16 at 224 px 4.9
hours of one core. Time limits are MARGIN times the estimate; that of training is LONGEST at most,
because a job that is tried again goes on from its last round. A job that is tried again gets a
multiple (workflow/rules/common.smk). On a GPU, limits of time are far too long: a profile's
`set-resources` may shorten them.
"""

import math
from dataclasses import dataclass

from fedloom.study.work import Work

RATE = 1e11  # operations of a core per second
MARGIN = 3
LIBRARIES = 1500  # MB that a process with torch, timm and open_clip takes
CUDA = 2500  # MB of host memory that CUDA takes besides
LONGEST = 1440  # minutes of a job of training
START = 15  # minutes for reading inputs and writing results


@dataclass(frozen=True)
class Resources:
    """A job's request.

    Attributes:
        mem_mb: memory of the host in MB (10^6 bytes).
        gpu_mem_mb: memory that the GPU must have; 0 without one.
        runtime: time limit in minutes.
    """

    mem_mb: int
    gpu_mem_mb: int
    runtime: int


def request(work: Work, resumes: bool = False, on_gpu: bool = False) -> Resources:
    """Return a job's request, rounded up to 500 MB and to 15 minutes.

    Args:
        resumes: a job that is cut goes on when it is tried again, so that LONGEST is enough.
        on_gpu: the job gets a GPU, whose memory holds the activations.
    """
    memory = CUDA + work.host if on_gpu else work.megabytes
    seconds = work.seconds + work.operations / RATE
    minutes = _up(START + MARGIN * seconds / 60, 15)
    return Resources(
        mem_mb=_up(LIBRARIES + memory, 500),
        gpu_mem_mb=_up(work.device, 500) if on_gpu else 0,
        runtime=min(minutes, LONGEST) if resumes else minutes,
    )


def _up(number: float, step: int) -> int:
    """Round up to a multiple of `step`."""
    return math.ceil(number / step) * step
