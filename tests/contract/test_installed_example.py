"""An example that is installed as a package, in the workflow."""

import math
import os
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from example_runs import EXAMPLES
from fedloom.machine.install import ROOT
from images_on_disk import image_folder

pytestmark = pytest.mark.slow


PACKAGE = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "their-methods"
version = "1.0"

[project.entry-points."fedloom.methods"]
fedrep_prompts = "their_methods.fedrep_prompts"
topk = "their_methods.topk"

[tool.setuptools.packages.find]
include = ["their_methods*"]

[tool.setuptools.package-data]
"*" = ["method.toml"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder in which pip installed two examples as a third party's package, offline."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    site = folder / "site"
    for name in ("fedrep_prompts", "topk"):
        shutil.copytree(EXAMPLES[name], source / "their_methods" / name)
        (source / "their_methods" / name / "__init__.py").touch()
    (source / "their_methods/__init__.py").touch()
    (source / "pyproject.toml").write_text(PACKAGE)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--disable-pip-version-check", "--target", site, source]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return site


STUDY = """
study: {name: theirs, rounds: 1, rounds_per_job: 1, seeds: [0], clients_per_round: 2,
        evaluate_every: 1, report: {last_evaluations: 1}}
datasets: {letters: {source: folder, root: ROOT}}
partitions: {two: {scheme: iid, clients: 2}}
methods: {theirs: {plugin: fedrep_prompts, wrappers: [{plugin: topk}]}}
select: {datasets: [letters], partitions: [two], methods: [theirs], tables: [main], figures: []}
"""


RUN = "results/runs/letters/two/micro_vit/theirs/seed0"


def _snakemake(site, folder, *words):
    """Run Snakemake in `folder` on this checkout, with the installed package beside it."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile"]
    command += ["--cores", "1", "--configfile", "study.yaml", *words]
    command += ["--", f"{RUN}/clients.parquet"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "workflow"), str(site)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_installed_package_trains_in_the_workflow_and_its_edits_count(site, tmp_path):
    """Snakemake makes everything from images to a run's rows; then the package's code is edited."""
    image_folder(tmp_path / "letters", ["ant", "bee"], count=8)
    (tmp_path / "study.yaml").write_text(STUDY.replace("ROOT", f"{tmp_path}/letters"))
    _snakemake(site, tmp_path)
    rows = pd.read_parquet(tmp_path / f"{RUN}/clients.parquet")
    assert rows["bytes_up"].tolist() == [8 * math.ceil(0.25 * 4 * 96)] * 2
    file = site / "their_methods/__init__.py"
    file.write_text("FACTOR = 2\n")
    told = _snakemake(site, tmp_path, "-n", "--quiet", "host")
    file.write_text("")
    planned = re.findall(r"^(dataset|partition|train) +\d+$", told, re.MULTILINE)
    assert set(planned) == {"train"}
