"""The cores and the memory that this process may use, whatever the machine has.

Schedulers and containers bound both by control groups (cgroups), and cores by the set that a
process may run on, too. A group's bound holds for all groups below it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = Path("sys/fs/cgroup")


def cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def core_quota(root: Path = Path("/")) -> float | None:
    """Return how many cores' time this process's cgroups allow; None where they allow all.

    Args:
        root: of the file system, for tests.
    """
    quotas = list[float]()
    for group in _groups(root):
        quotas += _ratio(_words(group / "cpu.max"))
        old = [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        quotas += _ratio(old)
    return min(quotas, default=None)


def memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process and those beside it in its cgroups may use."""
    limits = [psutil.virtual_memory().total]
    for group in _groups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += [int(word) for word in _words(group / name) if word.isdecimal()]
    return min(limits)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups and of those above, of version 1 and 2."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for mount in (root / CGROUPS / controllers, root / CGROUPS / "unified"):
            group = mount / path.lstrip("/")
            # in a container the path may be the host's; the mount itself is there in any case
            for folder in (group, *group.parents):
                yield folder
                if folder == mount:
                    break


def _ratio(words: list[str]) -> list[float]:
    """Return quota / period of a pair of numbers; nothing where there is no quota (max, -1)."""
    if len(words) != 2 or not words[0].isdecimal():
        return []
    return [int(words[0]) / int(words[1])]


def _words(file: Path) -> list[str]:
    return [word for line in _lines(file) for word in line.split()]


def _lines(file: Path) -> list[str]:
    """Return the lines of a file of the kernel's; none where this kernel has no such file."""
    return file.read_text().splitlines() if file.is_file() else []
