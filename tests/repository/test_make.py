"""`make venv`: an environment is built beside the old one, and replaces it when it is whole."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedloom.machine.install import ROOT

PYTHON = """#!/bin/sh
case "$1 $2" in
  "--version "*) echo "Python 3.11.0" ;;
  "-m venv") mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  "-m pip") echo "$@" >> "{log}"; exit {status} ;;
esac
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    (tmp_path / ".ci").mkdir()
    for name in ("Makefile", "constraints.txt", "pyproject.toml", ".ci/make-venv"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _make(checkout: Path, *words: str, status: int = 0, python: str | None = None):
    """Run make (default: `make venv`) with a stand-in for Python whose pip exits with `status`."""
    fake = checkout / "fake-python"
    fake.write_text(PYTHON.format(status=status, log=checkout / "pip.log"))
    fake.chmod(0o755)
    command = ["make", *(words or ["venv"]), f"PYTHON={python or fake}"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, env=clean)


def _installs(checkout: Path) -> int:
    return len((checkout / "pip.log").read_text().splitlines())


def test_a_failing_build_leaves_the_old_environment(checkout):
    assert _make(checkout).returncode == 0
    old = (checkout / ".venv").resolve()
    (checkout / "constraints.txt").write_text("torch==0\n")
    failed = _make(checkout, status=1)
    assert failed.returncode != 0 and "error: .venv is not changed" in failed.stderr
    assert (checkout / ".venv").resolve() == old and (old / "bin/python").exists()
    assert [path.name for path in (checkout / ".venvs").iterdir()] == [old.name]


def test_a_missing_python_is_one_line_and_leaves_the_old_environment(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv/mine").touch()
    failed = _make(checkout, python="python3.99")
    assert failed.returncode != 0 and "error: no python3.99; set PYTHON" in failed.stderr
    assert (checkout / ".venv/mine").exists()


def test_an_environment_is_made_once_per_set_of_versions(checkout):
    (checkout / ".venv").mkdir()  # an earlier version made it so
    for _ in range(2):
        assert _make(checkout).returncode == 0
    assert _installs(checkout) == 1
    text = (checkout / "pyproject.toml").read_text()
    (checkout / "pyproject.toml").write_text(text + "\n# ruff's settings pin no version\n")
    assert _make(checkout).returncode == 0
    assert _installs(checkout) == 1
    first = (checkout / ".venv").resolve()
    (checkout / "constraints.txt").write_text("torch==0\n")
    assert _make(checkout).returncode == 0
    assert _installs(checkout) == 2
    assert (checkout / ".venv").resolve() != first and first.exists()


def test_only_tests_and_documentation_have_their_tools(checkout):
    for _ in range(2):
        assert _make(checkout, "for-docs").returncode == 0
    packages, tools = (line.split()[-1] for line in (checkout / "pip.log").open())
    assert (packages, tools) == (".[clip,privacy,results,slurm,cluster-generic]", ".[docs]")


def test_one_word_asks_for_torch_without_cuda(checkout):
    assert _make(checkout).returncode == 0
    assert _make(checkout, "venv", "TORCH=cpu").returncode == 0
    file = (checkout / ".venv").resolve() / "constraints.txt"
    assert str(file.relative_to(checkout)) in (checkout / "pip.log").read_text().splitlines()[-1]
    pins = file.read_text().split()
    theirs = (checkout / "constraints.txt").read_text().split()
    changed = {pin.split("==")[0]: pin for pin in pins if pin not in theirs}
    assert changed.keys() == {"torch", "torchvision"}
    assert all(pin.removesuffix("+cpu") in theirs for pin in changed.values())
    (checkout / "constraints.txt").write_text("torch==0\n")
    failed = _make(checkout, "venv", "TORCH=cpu", status=1)
    assert "does the index that PIP_EXTRA_INDEX_URL names have torch==0+cpu?" in failed.stderr
