"""`fedloom doctor` finds what is wrong with a machine and says what to do."""

import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedloom.cli.inspect import doctor
from fedloom.common import temporary
from fedloom.machine import gpus, packages


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return program(script), which writes an nvidia-smi that comes first in PATH."""

    def write(script: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return write


@pytest.fixture
def look(capsys, tmp_path, monkeypatch, program):
    """Return look(), which returns the lines on what is wrong and on what is well.

    The folder is empty, and the machine has no GPU.
    """
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    program("echo No devices were found; exit 6")
    (tmp_path / "study").mkdir()
    monkeypatch.chdir(tmp_path / "study")

    def run() -> tuple[list[str], list[str]]:
        status = doctor.print_findings()
        lines = capsys.readouterr().out.splitlines()
        wrong = [line.removeprefix("FIX   ") for line in lines if line.startswith("FIX   ")]
        well = [line.removeprefix("ok    ") for line in lines if line.startswith("ok    ")]
        assert len(wrong) + len(well) == len(lines)
        assert status == bool(wrong)
        return wrong, well

    return run


def test_a_healthy_machine_is_well(look):
    wrong, well = look()
    assert wrong == []
    assert well[0].startswith(f"Python {sys.version.split()[0]}, fedloom ")
    assert re.search(", torch .*, open_clip_torch ", well[0])
    names = ["cores", "GPUs", "disk of results", "killed jobs have left no files"]
    assert [line.split(":")[0] for line in well[1:]] == names


def test_what_a_killed_job_left_is_named_with_its_size(look):
    """The folder's name holds its process: no process has the number 0, and this one is at work."""
    mine = temporary.temporary_name(Path("results/features/digits/vit.safetensors"))
    left = mine.with_name(mine.name.replace(f"-{os.getpid()}-", "-0-"))
    for folder in (mine, left):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(bytes(2000))
    (line,), well = look()
    assert line == f"left by killed jobs: {left} (2.0 kB); run `fedloom clean STUDY`"
    assert well[-1] == f"being written, here or on another machine: {mine} (2.0 kB)"


def test_a_disk_that_is_full_or_cannot_be_written_to(look, monkeypatch):
    Path("results").touch()
    assert look()[0][0].startswith("results: ")
    Path("results").unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0.9e9))
    (line,) = look()[0]
    assert re.fullmatch(rf"disk of results: 0.9 GB free in {Path.cwd()}; make room, .*", line)


def test_gpus(look, program, monkeypatch):
    program('for i in 0 1 2; do echo "GPU $i: H100 (UUID: GPU-doctor-$i)"; done')
    monkeypatch.setenv(gpus.VISIBLE, "0,2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert "GPUs: 3; jobs may take 2; CUDA_VISIBLE_DEVICES is '0,2'" in look()[1]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (line,) = look()[0]
    assert line.startswith("GPU GPU-doctor-0, GPU-doctor-2: torch ")
    program("echo no driver >&2; exit 9")
    assert look()[0][0].startswith("nvidia-smi -L: no driver; ")


def test_a_package_that_is_missing(look, monkeypatch):
    monkeypatch.setattr(packages, "PACKAGES", ("timm", "nosuchpackage"))
    assert look()[0][0].startswith("nosuchpackage: must be installed; run `make venv` in a clone")
