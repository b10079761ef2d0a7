"""A job that asks for a GPU takes one that no other job uses: fake devices, real processes."""

import os
import subprocess
import sys
import tempfile

import pytest
import torch

from fedloom.machine import gpus
from fedloom.machine.device import prepare_torch
from fedloom.machine.install import ROOT
from fedloom.machine.process_log import JOB_IDS
from refusals import refused

# a job: it prints the device that it took, and holds it until it is told to end
JOB = """
import logging, os, sys
from fedloom.machine import gpus
logging.basicConfig(format="%(message)s", level="INFO", stream=sys.stdout)
gpus.PAUSE = 0.02
print(gpus.acquire_gpu(), os.environ[gpus.VISIBLE], os.environ["CUDA_DEVICE_ORDER"], flush=True)
sys.stdin.read()
"""
LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111-0000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb2222-0000)
  MIG 1g.5gb     Device  0: (UUID: MIG-cccc3333-0000)
  MIG 1g.5gb     Device  1: (UUID: MIG-dddd4444-0000)
"""
NAMES = ["GPU-a", "GPU-b", "GPU-c"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return machine(listing, status), which makes an nvidia-smi that prints the listing."""
    for name in (*JOB_IDS, gpus.ASKED, gpus.VISIBLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def make(listing: str | None, status: int = 0) -> None:
        tool = tmp_path / "nvidia-smi"
        if listing is not None:
            tool.write_text(f"#!/bin/sh\ncat <<'END'\n{listing}END\nexit {status}\n")
            tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return make


@pytest.fixture
def start(machine):
    """Yield start(*visible, **environment), which starts a process that asks for a GPU.

    The processes are killed after the test.
    """
    machine(None)
    started = []

    def make(*visible: str, **environment: str) -> subprocess.Popen:
        known = {gpus.ASKED: "1", gpus.VISIBLE: ",".join(visible)}
        process = subprocess.Popen(
            [sys.executable, "-c", JOB],
            env=os.environ | known | {"PYTHONPATH": str(ROOT / "workflow")} | environment,
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


def took(name: str) -> str:
    """Return the line that a job prints when it took a device.

    Without PCI_BUS_ID, CUDA numbers the fastest device 0, and index 1 is another job's device.
    """
    return f"{name} {name} PCI_BUS_ID\n"


def test_jobs_take_one_device_each_and_wait_where_all_are_taken(start):
    jobs = {}
    for name in NAMES:
        jobs[name] = start(*NAMES)
        assert jobs[name].stdout.readline() == took(name)
    late = start(*NAMES)
    assert "waiting" in late.stdout.readline()
    jobs["GPU-b"].kill()
    assert late.stdout.readline() == took("GPU-b")


def test_jobs_of_one_allocation_compete_and_those_of_two_do_not(start):
    """A device that a scheduler shows a job is the job's own, even at an equal index."""
    for allocation in ("11", "12"):
        assert start("GPU-a", SLURM_JOB_ID=allocation).stdout.readline() == took("GPU-a")
    assert "waiting" in start("GPU-a", SLURM_JOB_ID="11").stdout.readline()


def test_an_index_and_a_uuid_of_one_device_are_one(start, machine):
    machine(LISTING)
    assert start("0").stdout.readline() == took("GPU-aaaa1111-0000")
    assert "waiting" in start("GPU-aaaa1111-0000").stdout.readline()


@pytest.mark.parametrize("asked", [None, "0"])
def test_a_job_that_does_not_ask_changes_nothing(machine, monkeypatch, asked):
    machine(LISTING)
    monkeypatch.setenv(gpus.VISIBLE, "1,0")
    if asked:
        monkeypatch.setenv(gpus.ASKED, asked)
    assert gpus.acquire_gpu() is None
    assert os.environ[gpus.VISIBLE] == "1,0"


@pytest.mark.parametrize(
    ("listing", "shown", "devices"),
    [
        (LISTING, None, ["GPU-aaaa1111-0000", "MIG-cccc3333-0000", "MIG-dddd4444-0000"]),
        (LISTING, "-1", []),
        (LISTING, "1, 0", ["MIG-cccc3333-0000", "GPU-aaaa1111-0000"]),
        (LISTING, "0,-1,1", ["GPU-aaaa1111-0000"]),
        (LISTING, "0,2,1", ["GPU-aaaa1111-0000"]),
        (LISTING, "NoDevFiles", []),  # Slurm sets this for a job without GPUs
        (LISTING, "MIG-dddd4444-0000,MIG-x/1/0", ["MIG-dddd4444-0000", "MIG-x/1/0"]),
        (None, None, []),
        (None, "3,1", ["3", "1"]),
    ],
)
def test_visible_devices_are_those_that_cuda_would_use(
    machine, monkeypatch, listing, shown, devices
):
    machine(listing)
    if shown is not None:
        monkeypatch.setenv(gpus.VISIBLE, shown)
    assert gpus.visible() == devices


def test_a_machine_without_gpus_and_one_with_a_broken_driver(machine, monkeypatch):
    machine("No devices were found\n", status=6)
    assert gpus.list_gpus() == []
    machine("NVIDIA-SMI has failed:\n driver\n", status=9)
    with refused("nvidia-smi -L", "driver", "CUDA_VISIBLE_DEVICES= "):
        gpus.list_gpus()
    monkeypatch.setenv(gpus.VISIBLE, "")
    assert gpus.visible() == [], "as the error advises"


@pytest.mark.parametrize(
    ("asked", "shown", "words"),
    [
        ("2", "0,1", ["got 2"]),
        ("1", "", ["0 visible", "CUDA_VISIBLE_DEVICES: ''"]),
        ("1", None, ["0 visible", "'not set'"]),
        ("1", "MIG-x/1/0", ["MIG-x/1/0: torch"]),  # cores would be fifty times slower
        ("0", "MIG-x/1/0", ["MIG-x/1/0: torch", "CUDA_VISIBLE_DEVICES= "]),
    ],
)
def test_a_device_that_a_job_cannot_have_is_an_error(machine, monkeypatch, asked, shown, words):
    machine(None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gpus, "_taken", [])  # closed when the test ends
    monkeypatch.setenv(gpus.ASKED, asked)
    if shown is not None:
        monkeypatch.setenv(gpus.VISIBLE, shown)
    with refused(*words):
        prepare_torch(1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_the_log_of_a_job_names_its_device(machine, caplog):
    machine(None)
    with caplog.at_level("DEBUG", "fedloom"):
        prepare_torch(1)
    assert "device: 1 CPU core(s)" in caplog.messages


def test_every_rule_with_the_resource_hands_it_to_its_job():
    rules = "".join(file.read_text() for file in sorted((ROOT / "workflow/rules").glob("*.smk")))
    with_resource = {r.split(":")[0] for r in rules.split("\nrule ")[1:] if " gpu=GPU," in r}
    with_command = {r.split(":")[0] for r in rules.split("\nrule ")[1:] if " gpu=True)" in r}
    assert with_resource == with_command == {"cache", "train", "artefact"}


@pytest.mark.parametrize("case", ["link", "everybody's", "another user's"])
def test_a_folder_of_locks_that_another_user_may_have_made_is_refused(tmp_path, monkeypatch, case):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"fedloom-{os.getuid()}"
    if case == "link":
        (tmp_path / "theirs").mkdir()
        folder.symlink_to(tmp_path / "theirs")
    elif case == "everybody's":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.mkdir(mode=0o700)
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        folder.rename(tmp_path / f"fedloom-{user + 1}")
    with refused(f"fedloom-{os.getuid()}: must be a folder that user {os.getuid()} alone"):
        gpus._first_free(["GPU-a"])
    monkeypatch.undo()
