"""FedLoom as an installed package: a study in a new folder, without the checkout."""

import json
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import installed
from fedloom.machine.install import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """Return the programs of an environment with the wheel and the packages of the tests."""
    folder = tmp_path_factory.mktemp("package")
    wheel = installed.build(sys.executable, folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "env/bin/python", "install"]
    options = ["--ignore-installed"]  # pip also sees the packages of the tests
    subprocess.run([*pip, *options, wheel, "--quiet", "--no-deps", "--no-index"], check=True)
    (packages,) = folder.glob("env/lib/python*/site-packages")
    # an entry of a .pth file is searched for packages, but not for further .pth files, by which an
    # editable install would lead to the checkout
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "env/bin"


def test_a_study_runs_in_its_own_folder_with_its_own_method(programs, tmp_path):
    output = installed.try_out(programs, tmp_path)
    study = tmp_path / "my-study"
    assert (study / "results/tables/first/main.md").read_text() in output
    (run,) = (study / "results/runs").glob("*/*/*/*/seed*")
    assert run.relative_to(study / "results/runs").parts[3] == "mine"
    plain = [programs / "python", "-m", "snakemake", "--cores", 2]
    plain += ["--config", f"set={json.dumps(installed.SMALL)}"]
    assert "Nothing to be done" in installed.call(*plain, folder=study)


def test_every_folder_beside_the_library_is_packed(programs):
    (packed,) = programs.parent.glob("lib/python*/site-packages/fedloom/bundle/workflow")
    folders = {path.name for path in (ROOT / "workflow").iterdir() if path.is_dir()}
    packages = {"fedloom", "snakemake_logger_plugin_fedloom", "pretraining"}
    library = packages | {"fedloom.egg-info", "__pycache__"}
    assert {path.name for path in packed.iterdir()} == folders - library


def test_the_version_is_that_of_the_project(programs, tmp_path):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (
        installed.call(programs / "fedloom", "--version", folder=tmp_path) == f"fedloom {version}\n"
    )
