"""Tables of settings and of datasets' sizes, which need no run."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from default_config import default_config
from fedloom.data import store
from fedloom.planning import paths, runs
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.report import tables
from fedloom.report.plotted_runs import plotted_runs
from refusals import refused
from shown_runs import table_files


def _config(**table):
    config = deepcopy(default_config())
    config["study"] |= {"rounds": 7, "clients_per_round": 6, "training": {"epochs": 2, "lr": 0.25}}
    config["methods"]["slow"] = {"plugin": "scaffold_pt", "title": "Slow", "rounds": 9}
    config["datasets"]["other"] = {"source": "sklearn_digits"}
    config["select"] |= {
        "datasets": ["digits", "other"], "partitions": ["iid", "domains"],
        "methods": ["fedavg_pt", "slow"], "tables": ["t"], "figures": [],
    }  # fmt: skip
    config["tables"] = {"t": table}
    return config


def _plan(**table):
    return Plan(resolve(_config(**table)))


T = SimpleNamespace(label="t")


def _cells(job, tmp_path):
    outputs = table_files(tmp_path)
    tables.write_table(job, plotted_runs(job.shown), outputs)
    text = outputs["md"].read_text()
    header, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    lines = [[cell.strip() for cell in row.strip("|").split("|")] for row in (header, *rows)]
    return text.splitlines()[-1], lines, pd.read_parquet(outputs["parquet"])


@pytest.mark.parametrize("kind", ["protocol", "sizes"])
def test_they_need_no_run(kind):
    plan = _plan(kind=kind)
    assert runs.study_runs(plan.settings) == []
    files = plan.shown_files("table", T)
    stores = [f"results/datasets/{name}/images.json" for name in ("digits", "other")]
    assert files == (stores if kind == "sizes" else [])


def test_settings_are_those_that_every_method_is_trained_with(tmp_path):
    job = _plan(kind="protocol", scenarios=["digits/iid", "digits/domains"]).job("table", T)
    _, lines, frame = _cells(job, tmp_path)
    assert lines == [
        ["Partition", "Method", "Rounds", "Clients", "In a round", "Optimiser", "Learning rate",
         "Epochs", "Batch"],
        ["iid", "FedAvg-PT", "7", "20", "6", "adam", "0.25", "2", "16"],
        ["iid", "Slow", "9", "20", "6", "sgd", "0.25", "2", "16"],
        ["domains", "FedAvg-PT", "7", "5 per domain", "6", "adam", "0.25", "2", "16"],
        ["domains", "Slow", "9", "5 per domain", "6", "sgd", "0.25", "2", "16"],
    ]  # fmt: skip
    assert frame["lr"].tolist() == [0.25] * 4


def test_a_papers_settings_stand_in_brackets_where_they_differ(tmp_path):
    published = {"paper": "pfpt", "table": 9, "rows": {"slow": "SCAFFOLD-PT"}}
    published |= {"columns": {"digits/iid": "CIFAR-10 Dir(0.1)"}}
    job = _plan(kind="protocol", scenarios=["digits/iid"], published=published).job("table", T)
    details, lines, _ = _cells(job, tmp_path)
    assert "Published, in brackets or a column: Weng et al." in details
    assert lines[1] == ["FedAvg-PT", "7", "20", "6", "adam", "0.25", "2", "16"]
    assert lines[2] == [
        "Slow", "9 (200)", "20 (100)", "6 (10)", "sgd", "0.25 (0.0001)", "2 (5)", "16",
    ]  # fmt: skip


def _store(name):
    """Write a store of three training images of two classes and domains, and a test image of none.

    As in federated iNaturalist, nobody knows the domain of the test image.
    """
    rows = [(0, False, "a"), (1, False, "b"), (1, False, "b"), (0, True, "")]
    examples = [store.Example(np.zeros((1, 1, 1), np.uint8), y, t, d) for y, t, d in rows]
    path = paths.path_for(paths.STORE, dataset=name)
    path.parent.mkdir(parents=True)
    store.write_images(path, examples, (1, 1, 1), ["x", "y", "z"], "made by a test")


def test_sizes_count_images_classes_and_domains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _store("digits")
    _store("other")
    published = {"paper": "fedpha", "table": 6, "rows": {"other": "Office31"}}
    details, lines, frame = _cells(
        _plan(kind="sizes", published=published).job("table", T), tmp_path
    )
    assert lines == [
        ["Dataset", "Classes", "Training images", "Test images", "Domains"],
        ["digits", "2", "3", "1", "2"],  # classes without images do not count
        ["other", "2 (31)", "3 (3292)", "1 (813)", "2 (3)"],
    ]
    assert "Published, in brackets or a column: Fang et al." in details
    assert frame["train"].tolist() == [3, 3]


def test_published_sizes_name_datasets():
    published = {"paper": "fedpha", "table": 6, "rows": {"office": "Office31"}}
    with refused("tables.t.published.rows", "'office'", "digits, other"):
        _plan(kind="sizes", published=published)
