"""What a table of times shows, and what FedPHA times."""

from time import sleep

import pandas as pd
import pytest
import torch

from fedloom.federated.evaluate import compute_artefact
from fedloom.federated.round import initial_state, train_round
from fedloom.report.tables import layout, published, summary
from first_round import module
from shown_runs import shown, table_kind


def test_times_are_means_and_shares_of_training(tmp_path):
    columns = {"stage": ["decomposition"] * 2 + ["projection", "training"]}
    path = tmp_path / "t.parquet"
    pd.DataFrame(columns | {"milliseconds": [3.0, 5.0, 1.0, 400.0]}).to_parquet(path)
    found = table_kind("timings").measure(shown(artefact=path))
    assert found == {
        "decomposition_ms": 4, "projection_ms": 1, "training_ms": 400,
        "decomposition_percent": 1, "projection_percent": 0.25,
    }  # fmt: skip
    frame = summary.summarise([shown()], [found])
    values = {"FedPHA": {"X": {"decomposition_ms": [4.2], "decomposition_percent": {"below": 1}}}}
    entry = {"rows": {"m": "FedPHA"}, "columns": {"d/p": "X"}, "values": values}
    texts = layout.summary_text(
        published.join_published(frame, entry), table_kind("timings").column
    )
    assert texts.titles[:3] == ["Method", "Decomposition (ms)", "Decomposition (ms), published"]
    assert texts.cells["decomposition_percent_published"].tolist() == ["< 1.00"]
    assert not texts.marks.to_numpy().any(), "times of machines have no best"


@pytest.mark.parametrize("variant", ["paper", "algorithm_1", "released"])
def test_fedpha_times_its_projection_and_the_training_beside_it(tiny, variant):
    task, hooks = tiny("fedpha", variant=variant)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    before = {name: value.clone() for name, value in state.server["params"].items()}
    table = pd.DataFrame(compute_artefact(task.at(1), hooks, state, "timings"))
    assert table["stage"].value_counts().to_dict() == {
        "decomposition": 10, "projection": 10, "training": 1,
    }  # fmt: skip
    after = state.server["params"]
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_times_are_milliseconds_of_one_clients_part_of_a_round():
    def decompose(context):
        sleep(0.02)
        return torch.eye(3)

    table = module("fedpha", "timings").timings(
        decompose, lambda: sleep(0.5), context=torch.ones(2, 3), local=torch.ones(4, 3), clients=100
    )
    times = pd.DataFrame(table).groupby("stage")["milliseconds"].min()
    assert times["decomposition"] >= 20
    assert times["projection"] < 20, "without the decomposition"
    assert 5 <= times["training"] < 500, "the cohort of 100 took 500"
