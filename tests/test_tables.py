"""The main table, by hand."""

import pandas as pd
import pytest

from fedloom.evaluation.metrics import accuracies
from fedloom.report import tables


def _evaluation(path, correct, rounds=(1, 2)):
    """Clients 0 and 1 take part, client 2 is held out; 10 and 20 and 10 test images."""
    rows = [
        {
            "round": r,
            "client_id": k,
            "domain": "x",
            "participating": k < 2,
            "num_test": (10, 20, 10)[k],
            "num_correct": n,
            "loss": 0.0,
        }
        for r in rounds
        for k, n in enumerate(correct[r])
    ]
    frame = pd.DataFrame(rows)
    if path:
        frame.to_parquet(path)
    return frame


def test_accuracies_are_means_over_clients_then_rounds():
    frame = _evaluation(None, {1: (10, 10, 3), 2: (5, 20, 7)})
    assert accuracies(frame, [1, 2]) == {
        "participating_mean": (75 + 75) / 2,
        "participating_worst": (50 + 50) / 2,
        "held_out_mean": (30 + 70) / 2,
        "held_out_worst": 50,
    }
    assert accuracies(frame, [2])["held_out_mean"] == 70
    nobody = frame[frame["participating"]]
    assert accuracies(nobody, [1]).keys() == {"participating_mean", "participating_worst"}


@pytest.fixture
def outputs(tmp_path):
    runs = []
    scores = {"a_b": [(10, 20, 5), (8, 16, 5)], "second": [(7, 14, 5), (7, 14, 5)],
              "third": [(1, 2, 4), (1, 2, 4)]}  # fmt: skip
    for method, seeds in scores.items():
        for seed, correct in enumerate(seeds):
            path = tmp_path / f"{method}{seed}.parquet"
            _evaluation(path, {1: correct}, rounds=(1,))
            labels = {"dataset": "d", "partition": "p", "backbone": "b", "method": method}
            runs.append(labels | {"title": method, "evaluation": str(path)})
    outputs = {kind: tmp_path / f"main.{kind}" for kind in ("md", "csv", "tex", "parquet")}
    tables.write({"name": "s_1"}, runs, [1], outputs)
    return outputs


def test_markdown(outputs):
    lines = outputs["md"].read_text().splitlines()
    assert "mean ± standard deviation over 2 seeds; round 1." in lines[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0] == ["Method", "Mean", "Worst", "Held-out mean", "Held-out worst"]
    # 100 and 80: mean 90, sample deviation sqrt(200) = 14.14
    assert cells[2][:2] == ["a_b", "**90.00 ± 14.14**"]
    assert cells[3][:2] == ["second", "<u>70.00 ± 0.00</u>"]
    assert cells[4][:2] == ["third", "10.00 ± 0.00"]
    assert cells[2][3] == cells[3][3] == "**50.00 ± 0.00**", "equal figures share a rank"
    assert cells[4][3] == "<u>40.00 ± 0.00</u>"


def test_latex(outputs):
    text = outputs["tex"].read_text()
    for part in (r"\toprule", r"\bottomrule", r"\textbf{90.00 $\pm$ 14.14}", r"a\_b", "lrrrr"):
        assert part in text
    assert r"\underline{70.00 $\pm$ 0.00}" in text
    assert r"Study s\_1: test accuracy in \%" in text


def test_numbers(outputs):
    for frame in (pd.read_csv(outputs["csv"]), pd.read_parquet(outputs["parquet"])):
        assert frame["participating_mean"].tolist() == [90, 70, 10]
        assert frame["seeds"].tolist() == [2, 2, 2]
        assert frame["participating_mean_std"].iloc[0] == pytest.approx(200**0.5, abs=1e-4)


def test_one_seed_has_no_deviation(tmp_path):
    path = tmp_path / "x.parquet"
    _evaluation(path, {1: (10, 20, 5)}, rounds=(1,))
    labels = dict.fromkeys(("dataset", "partition", "backbone", "method", "title"), "x")
    summary = tables.summarise([labels | {"evaluation": path}], [1])
    assert tables.render(summary, {}, " ± ")["Mean"].tolist() == ["100.00"]


def test_a_group_without_clients_has_a_dash(tmp_path):
    runs = []
    for partition, participating in (("all", [0, 1, 2]), ("some", [0, 1])):
        frame = _evaluation(None, {1: (10, 20, 5)}, rounds=(1,))
        frame["participating"] = frame["client_id"].isin(participating)
        frame.to_parquet(tmp_path / partition)
        labels = dict.fromkeys(("dataset", "backbone", "method", "title"), "x")
        runs.append(labels | {"partition": partition, "evaluation": tmp_path / partition})
    text = tables.render(tables.summarise(runs, [1]), {}, " ± ")
    assert text["Held-out mean"].tolist() == ["-", "50.00"]
    assert text["Partition"].tolist() == ["all", "some"]
