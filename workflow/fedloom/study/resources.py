"""Memory and time that jobs ask a cluster for, from what they compute (fedloom.study.work).

A core does RATE operations per second: features of 50,000 images took a ViT-B/16 at 224 px 4.9
hours of one core. Time limits are MARGIN times the estimate; that of training is LONGEST at most,
because a job that is tried again goes on from its last round. A job that is tried again gets a
multiple (workflow/rules/common.smk). On a GPU, limits of time are far too long: a profile's
`set-resources` may shorten them.
"""

from dataclasses import dataclass

from fedloom.study.work import Work

RATE = 1e11  # operations of a core per second
MARGIN = 3
LIBRARIES = 1500  # MB that a process with torch, timm and open_clip takes
LONGEST = 1440  # minutes of a job of training
START = 15  # minutes for reading inputs and writing results


@dataclass(frozen=True)
class Resources:
    """What a job asks for.

    Attributes:
        mem_mb: memory in MB (10^6 bytes).
        runtime: time limit in minutes.
    """

    mem_mb: int
    runtime: int


def asked_for(work: Work, resumes: bool = False) -> Resources:
    """Return what a job asks for, rounded up to 500 MB and to 15 minutes.

    Args:
        resumes: the job goes on where it was cut, so that it need not ask for more than LONGEST.
    """
    memory = -(-(LIBRARIES + work.megabytes) // 500) * 500
    seconds = work.seconds + work.operations / RATE
    minutes = -(-(START + MARGIN * seconds / 60) // 15) * 15
    return Resources(int(memory), int(min(minutes, LONGEST) if resumes else minutes))
