"""The cores and the memory that a process may use, from trees of files as the kernel shows them."""

import os
from pathlib import Path

import psutil
import pytest

from fedloom.common import machine


@pytest.fixture
def tree(tmp_path):
    """tree(groups, {file: text}): a kernel that says this of the process's cgroups."""

    def make(groups: str, files: dict[str, str]) -> Path:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
        for name, text in files.items():
            file = tmp_path / "sys/fs/cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return make


VERSION_2 = "0::/slurm/job_1\n"
VERSION_1 = "4:memory:/slurm/job_1\n3:cpu,cpuacct:/slurm/job_1\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        (VERSION_2, {"slurm/job_1/cpu.max": "150000 100000\n"}, 1.5),
        (VERSION_2, {"slurm/job_1/cpu.max": "max 100000\n"}, None),
        # the bound of a group holds for those below it, and the smallest one counts
        (VERSION_2, {"slurm/cpu.max": "2 1\n", "slurm/job_1/cpu.max": "3 1\n"}, 2),
        (VERSION_2, {"slurm/cpu.max": "3 1\n", "slurm/job_1/cpu.max": "2 1\n"}, 2),
        (VERSION_2, {"slurm/job_2/cpu.max": "1 1\n"}, None),
        # a container whose own group is at the mount, whatever the host's path is
        (VERSION_2, {"cpu.max": "4 1\n"}, 4),
        (
            VERSION_1,
            {
                "cpu,cpuacct/slurm/job_1/cpu.cfs_quota_us": "50000\n",
                "cpu,cpuacct/slurm/job_1/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            VERSION_1,
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_the_smallest_quota_of_cores_counts(tree, groups, files, quota):
    assert machine.core_quota(tree(groups, files)) == quota


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (VERSION_2, {"slurm/memory.max": "3000\n", "slurm/job_1/memory.max": "max\n"}, 3000),
        (VERSION_1, {"memory/slurm/job_1/memory.limit_in_bytes": "2000\n"}, 2000),
        ("4:memory:/\n0::/job\n", {"unified/job/memory.max": "1000\n"}, 1000),
        # version 1 says so where there is no limit
        (VERSION_1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        (VERSION_2, {}, None),
    ],
)
def test_memory_is_the_machines_or_less(tree, groups, files, limit):
    expected = psutil.virtual_memory().total if limit is None else limit
    assert machine.memory(tree(groups, files)) == expected


def test_cores_are_those_that_the_process_may_run_on():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine.cores() == 1
    finally:
        os.sched_setaffinity(0, before)
