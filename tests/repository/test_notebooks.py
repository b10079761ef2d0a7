"""The notebooks of the documentation run, one after the other in one folder."""

import os
import re

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

import checkout
import fedloom
from fedloom.machine.install import ROOT

pytestmark = pytest.mark.slow

NOTEBOOKS = {file.stem: file for file in (ROOT / "docs/notebooks").glob("*.ipynb")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a checkout in which the notebook on results has run its study."""
    folder = checkout.copy_to(tmp_path_factory.mktemp("checkout"))
    _execute("results", folder)
    return folder


def _execute(name: str, folder) -> nbformat.NotebookNode:
    """Run the cells of a notebook in a folder, and return it with their outputs."""
    path = os.pathsep.join([str(folder / "workflow"), os.environ.get("PYTHONPATH", "")])
    resources = {"metadata": {"path": folder}}
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    NotebookClient(notebook, timeout=300, resources=resources).execute(
        env=os.environ | {"PYTHONPATH": path}
    )
    return notebook


def test_a_notebook_on_results_has_the_numbers_of_the_table(folder):
    rows = fedloom.results("small", folder)
    last = rows[(rows["round"] == 4) & (rows["group"] == "participating")]
    seeds = last.groupby(["method", "seed"], observed=True)["accuracy"].mean()
    table = pd.read_parquet(folder / "results/tables/small/main.parquet").set_index("method")
    means = seeds.groupby("method", observed=True).agg(["mean", "std"])
    assert means["mean"].to_dict() == pytest.approx(table["participating_mean"].to_dict())
    assert means["std"].to_dict() == pytest.approx(table["participating_mean_std"].to_dict())


@pytest.mark.parametrize("name, study", [("method", "own_heads"), ("images", "mine")])
def test_a_notebook_runs_its_study(folder, name, study):
    _execute(name, folder)
    assert len(fedloom.results(study, folder))


def test_a_notebook_trains_round_by_round_and_predicts_new_images(tmp_path):
    """The last rounds are far better than a guess among ten classes, which is right in 10 %."""
    notebook = _execute("rounds", tmp_path)
    printed = ""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            printed += output.get("text", "")
    shown = re.findall(r"(\w+) <round 10, loss [\d.]+, accuracy ([\d.]+) %>", printed)
    assert [method for method, _ in shown] == ["head_tuning", "fedvpt_deep"]
    assert all(float(accuracy) > 50 for _, accuracy in shown)

    # the last cell shows a class and the truth of each of three images
    table = notebook.cells[-1]["outputs"][-1]["data"]["text/plain"]
    answers = re.findall(r"digit_(\d) .* (\d)$", table, re.M)
    assert len(answers) == 3
    assert all(answer == truth for answer, truth in answers)


def test_notebooks_have_no_outputs():
    for file in NOTEBOOKS.values():
        cells = nbformat.read(file, as_version=4).cells
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), file
