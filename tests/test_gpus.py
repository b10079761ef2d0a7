"""A job that asks for a GPU takes one that no other job uses: fake devices, real processes."""

import os
import re
import subprocess
import sys

import pytest

from fedloom.common import gpus
from fedloom.common.checkout import ROOT
from fedloom.common.device import prepare_torch
from fedloom.common.errors import FedLoomError
from fedloom.common.logs import JOB_IDS

# a job: it says which device it took, and holds it until it is told to end
JOB = """
import logging, os, sys
from fedloom.common import gpus
logging.basicConfig(format="%(message)s", level="INFO", stream=sys.stdout)
gpus.PAUSE = 0.02
print(gpus.take(), os.environ.get(gpus.VISIBLE), flush=True)
print(os.environ.get("CUDA_DEVICE_ORDER"), flush=True)
sys.stdin.read()
"""
LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb2222-0000)
  MIG 1g.5gb     Device  0: (UUID: MIG-cccc3333-0000)
  MIG 1g.5gb     Device  1: (UUID: MIG-dddd4444-0000)
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(listing, status): a machine whose nvidia-smi prints this; None: it has none."""
    for name in (*JOB_IDS, gpus.ASKED, gpus.VISIBLE):
        monkeypatch.delenv(name, raising=False)

    def make(listing: str | None, status: int = 0) -> None:
        tool = tmp_path / "nvidia-smi"
        if listing is not None:
            tool.write_text(f"#!/bin/sh\ncat <<'END'\n{listing}END\nexit {status}\n")
            tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return make


@pytest.fixture
def names():
    """Names of three devices, which no other test of this machine uses."""
    return [f"GPU-{os.getpid()}-{number}" for number in range(3)]


@pytest.fixture
def start(machine):
    """start(visible, **environment): a process that asks for a GPU, killed after the test."""
    machine(None)
    started = []

    def make(visible: str, **environment: str) -> subprocess.Popen:
        known = {gpus.ASKED: "1", gpus.VISIBLE: visible, "PYTHONPATH": str(ROOT / "workflow")}
        process = subprocess.Popen(
            [sys.executable, "-c", JOB],
            env=os.environ | known | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen) -> str:
    """Return the next line that a process prints."""
    return process.stdout.readline().strip()


def test_jobs_take_one_device_each_and_wait_where_all_are_taken(start, names):
    """By default CUDA puts the fastest first, and index 1 would be another job's device."""
    jobs = {}
    for name in names:
        jobs[name] = start(",".join(names))
        assert said(jobs[name]) == f"{name} {name}"
        assert said(jobs[name]) == "PCI_BUS_ID"
    late = start(",".join(names))
    assert "waiting" in said(late)
    jobs[names[1]].kill()
    assert said(late) == f"{names[1]} {names[1]}"


def test_jobs_of_one_allocation_compete_and_those_of_two_do_not(start, names):
    """What a scheduler shows a job is its own, by the same index as another job's on the node."""
    first = start(names[0], SLURM_JOB_ID="11")
    assert said(first) == f"{names[0]} {names[0]}"
    assert said(start(names[0], SLURM_JOB_ID="12")) == f"{names[0]} {names[0]}"
    assert "waiting" in said(start(names[0], SLURM_JOB_ID="11"))


def test_an_index_and_a_uuid_of_one_device_are_one(start, machine):
    uuid = f"GPU-{os.getpid()}-uuid"
    machine(f"GPU 0: A (UUID: {uuid})\n")
    assert said(start("0")) == "0 0"
    assert "waiting" in said(start(uuid))


def test_a_job_that_does_not_ask_changes_nothing(machine, monkeypatch):
    machine(LISTING)
    monkeypatch.setenv(gpus.VISIBLE, "1,0")
    for asked in ("", "0"):
        if asked:
            monkeypatch.setenv(gpus.ASKED, asked)
        assert gpus.take() is None
        assert os.environ[gpus.VISIBLE] == "1,0"
    assert gpus.is_free("GPU-aaaa1111-0000")


@pytest.mark.parametrize(
    ("shown", "devices"),
    [
        (None, ["GPU-aaaa1111-0000", "MIG-cccc3333-0000", "MIG-dddd4444-0000"]),
        ("-1", []),
        ("1, 0", ["MIG-cccc3333-0000", "GPU-aaaa1111-0000"]),
        ("0,-1,1", ["GPU-aaaa1111-0000"]),
        ("GPU-aaaa", ["GPU-aaaa1111-0000"]),
        ("GPU-bbbb2222-0000", ["MIG-cccc3333-0000"]),
        ("MIG-dddd,MIG-cccc3333-0000", ["MIG-dddd4444-0000", "MIG-cccc3333-0000"]),
        ("MIG-GPU-bbbb2222-0000/1/0", ["MIG-GPU-bbbb2222-0000/1/0"]),
    ],
)
def test_visible_devices_are_what_cuda_would_use(machine, monkeypatch, shown, devices):
    machine(LISTING)
    if shown is not None:
        monkeypatch.setenv(gpus.VISIBLE, shown)
    assert list(gpus.visible()) == devices


def test_without_nvidia_smi_names_are_taken_as_they_are(machine, monkeypatch):
    machine(None)
    assert gpus.visible() == {}
    monkeypatch.setenv(gpus.VISIBLE, "3,1")
    assert gpus.visible() == {"3": "3", "1": "1"}


def test_a_machine_without_gpus_and_one_with_a_broken_driver(machine):
    machine("No devices were found\n", status=6)
    assert gpus.installed() == []
    machine("NVIDIA-SMI has failed:\n driver\n", status=9)
    with pytest.raises(FedLoomError, match=r"^nvidia-smi -L: .*driver$"):
        gpus.installed()


@pytest.mark.parametrize(
    ("asked", "shown", "line"),
    [
        ("2", "0,1", "resource gpu: 2: "),
        ("1", "", "CUDA_VISIBLE_DEVICES is ''"),
        ("1", None, "nvidia-smi lists none"),
    ],
)
def test_what_cannot_be_given_is_an_error(machine, monkeypatch, asked, shown, line):
    machine(None)
    monkeypatch.setenv(gpus.ASKED, asked)
    if shown is not None:
        monkeypatch.setenv(gpus.VISIBLE, shown)
    with pytest.raises(FedLoomError, match=re.escape(line)):
        prepare_torch(1)


def test_a_device_that_torch_cannot_use_is_an_error(machine, monkeypatch):
    """A run that was to be on a GPU does not go on, fifty times slower, on cores."""
    machine(None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gpus, "_taken", [])  # closed when the test ends
    monkeypatch.setenv(gpus.ASKED, "1")
    monkeypatch.setenv(gpus.VISIBLE, f"GPU-{os.getpid()}-none")
    with pytest.raises(FedLoomError, match=rf"^GPU GPU-{os.getpid()}-none: "):
        prepare_torch(1)


def test_every_rule_with_the_resource_hands_it_to_its_job():
    rules = "".join(file.read_text() for file in sorted((ROOT / "workflow/rules").glob("*.smk")))
    with_resource = {r.split(":")[0] for r in rules.split("\nrule ")[1:] if " gpu=0," in r}
    with_command = {r.split(":")[0] for r in rules.split("\nrule ")[1:] if " gpu=True)" in r}
    assert with_resource == with_command == {"cache", "train", "artefact"}
