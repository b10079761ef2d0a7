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
from servers import ModelHub, serving

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


@pytest.fixture(scope="module")
def tried(programs, tmp_path_factory) -> tuple[Path, str]:
    """Return the folder of a study that has run, and the output of the run."""
    folder = tmp_path_factory.mktemp("tried")
    output = installed.try_out(programs, folder)
    return folder / "my-study", output


def test_a_study_runs_in_its_own_folder_with_its_own_method(programs, tried):
    study, output = tried
    assert (study / "results/tables/first/main.md").read_text() in output
    runs = (study / "results/runs").glob("*/*/*/*/seed*")
    assert {run.parent.name for run in runs} == {"fedvpt", "mine"}
    plain = [programs / "python", "-m", "snakemake", "--cores", 2]
    plain += ["--config", f"set={json.dumps(installed.SMALL)}"]
    assert "Nothing to be done" in installed.call(*plain, folder=study)


def test_a_published_model_predicts_in_a_folder_of_its_own(programs, tried, tmp_path, monkeypatch):
    """The answers from the folder, and from a hub that HF_ENDPOINT names, are the same."""
    elsewhere = tmp_path / "elsewhere"
    output = installed.take_away(programs, tried[0], elsewhere)
    (answer,) = [line.split() for line in output.splitlines() if line.startswith("image.png")]

    files = {file.name: file.read_bytes() for file in (elsewhere / "model").iterdir()}
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with serving(ModelHub, files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        ask = "import fedloom; print(fedloom.load('me/letters').predict('image.png').to_csv())"
        again = installed.call(programs / "python", "-c", ask, folder=elsewhere)
        assert {*hub.given} == {*files}
    image, rank, name, probability = again.split()[-1].split(",")[1:]
    assert [image, rank, name, f"{float(probability):.3f}"] == answer


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
