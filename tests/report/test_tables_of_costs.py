"""Tables of bytes and seconds, and which way a column is better."""

import csv

import pandas as pd
import pytest

from fedloom.report import tables
from fedloom.report.tables import layout, summary
from fedloom.report.tables.costs import cost_to_target
from shown_runs import shown, table_files, table_job, table_kind
from table_cases import evaluation_table, run_of


def cost_of(target):
    evaluation = evaluation_table(
        None, {2: (5, 10, 10), 4: (8, 16, 0), 6: (9, 18, 0)}, rounds=(2, 4, 6)
    )
    columns = {"processor_seconds": 2.0, "bytes_up": 5e5, "bytes_down": 1e6, "clients": 5}
    rounds = pd.DataFrame({"round": range(1, 7), **columns})
    return cost_to_target(evaluation, rounds, target)


def test_communication_counts_up_to_the_first_evaluated_round_at_the_target():
    found = cost_of(80)  # 50, 80, 90 % at rounds 2, 4, 6
    names = ("rounds", "megabytes_up", "megabytes_down", "processor_seconds")
    assert [found[name] for name in names] == [4, 2, 4, 8]
    assert found["million_params"] == 4 * 5e5 / 5 / 4 / 1e6, "of one client, four bytes a number"
    assert not found["rounds_above"]


def test_a_target_never_reached_is_a_bound_and_never_the_best():
    runs = [run_of(method, seed) for method in "ab" for seed in (0, 1)]
    frame = summary.summarise(runs, [cost_of(80), cost_of(95), cost_of(80), cost_of(90)])
    shown = layout.summary_text(frame, table_kind("communication").column)
    assert shown.cells["rounds"].tolist() == ["> 5.0", "5.0 ± 1.4"]  # 4 and > 6; 4 and 6
    assert shown.marks["rounds"].tolist() == ["", layout.BEST]
    latex = layout.latex(layout.FinishedTable(frame, shown, "x"), "tab:x")
    assert r"\ensuremath{>} 5.0 &" in latex and r"\textbf{5.0 $\pm$ 1.4} &" in latex


def test_seconds_are_the_processors_on_named_machines_and_never_marked(tmp_path):
    """Wall seconds of runs that shared the cores would say nothing of the methods."""
    runs = []
    for method, spent, threads, cores in (("a", 2.0, 1, 2), ("b", 3.0, 1, 8)):
        evaluation, rounds = (tmp_path / f"{method}.{name}.parquet" for name in "er")
        evaluation_table(evaluation, {1: (5, 10, 0), 2: (10, 20, 0)})
        columns = {"round": [1, 2], "seconds": 99.0, "processor_seconds": spent}
        columns |= {"threads": threads, "cores": cores, "bytes_up": 1, "bytes_down": 1}
        columns |= {"clients": 1, "train_loss": 1.0, "guessing_loss": 2.3}
        pd.DataFrame(columns).to_parquet(rounds)
        runs.append(shown(method=method, title=method, evaluation=evaluation, rounds=rounds))
    outputs = table_files(tmp_path)
    tables.write_table(table_job("communication", target=90), runs, outputs)
    _, _, header, _, *rows, _, details = outputs["md"].read_text().splitlines()
    assert "processor time of training" in details
    assert "threads: 1, cores of the machine: 2 to 8" in details
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (header, *rows)]
    assert [row[-1] for row in cells] == ["Processor time (s)", "4.0", "6.0"]


def test_no_spreadsheet_computes_a_title(tmp_path):
    titles = ["=HYPERLINK(0)", "+1 prompt", "-1 prompt", "@SUM(1)", "-1e-3", "-", "a=1"]
    runs = [shown(method=f"m{n}", title=title) for n, title in enumerate(titles)]
    frame = summary.summarise(runs, [{"x": -1.5, "=y": 1.0} for _ in titles])
    outputs = table_files(tmp_path)
    built = layout.FinishedTable(frame, layout.summary_text(frame, layout.Column), "caption")
    layout.write_formats(built, "tab:x", outputs)
    with outputs["csv"].open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["title"] for row in rows] == [*(f"'{title}" for title in titles[:4]), *titles[4:]]
    assert {row["x"] for row in rows} == {"-1.5000"} and "'=y" in rows[0]


def test_lower_is_better_where_it_is():
    column = layout.Column("Rounds", higher_is_better=False, decimals=1)
    numbers = [{"x": 3.0}, {"x": 1.04}, {"x": 1.0}] * 2
    frame = summary.summarise([run_of(m, seed) for seed in (0, 1) for m in "abc"], numbers)
    assert layout.ranks(frame, "x", column).tolist() == [2, 1, 1], "as printed"


@pytest.mark.parametrize(
    ("kind", "settings", "best"),
    [
        (
            "communication",
            {"target": 50.0},
            {
                "rounds": "lowest", "megabytes_up": "lowest", "megabytes_down": "lowest",
                "million_params": "lowest", "processor_seconds": None,
            },
        ),
        ("parameters", {}, {"params_up": "lowest", "params_down": "lowest"}),
        (
            "clustering",
            {"superclasses": None},
            {
                "information": "highest", "accuracy": None, "congruence": "highest",
                "largest": None,
            },
        ),
        ("held_out", {}, {"participating_mean": "highest", "held_out_mean": "highest"}),
        (
            "accuracy",
            {},
            {
                "participating_mean": "highest", "participating_worst": "highest",
                "held_out_mean": "highest", "held_out_worst": "highest", "global": "highest",
                "pooled": "highest", "backdoor_rate": "lowest",
            },
        ),
        (
            "forgetting",
            {},
            {"last": "highest", "average": "highest", "forgetting": "lowest"},
        ),
    ],
)  # fmt: skip
def test_the_best_of_a_column_is_its_lowest_cost_or_highest_share(kind, settings, best):
    """Three methods have the values 1, 2 and 3, of which a printed table marks the best two."""
    runs = [run_of(method, seed) for seed in (0, 1) for method in "abc"]
    frame = summary.summarise(runs, [dict.fromkeys(best, float(n)) for n in (1, 2, 3)] * 2)
    shown = layout.summary_text(frame, table_kind(kind, **settings).column)
    marks = {"lowest": ["best", "second", ""], "highest": ["", "second", "best"], None: [""] * 3}
    for name, end in best.items():
        assert shown.marks[name].fillna("").tolist() == marks[end], name


def test_a_column_without_a_direction_marks_nothing():
    runs = [run_of("pep"), run_of("mine")]
    frame = summary.summarise(runs, [{"accuracy": 90.0}, {"accuracy": 91.0}])
    shown = layout.summary_text(frame, table_kind("clustering").column)
    assert shown.titles == ["Method", "Clustering accuracy"]
    assert shown.cells["accuracy"].tolist() == ["90.00", "91.00"]
    assert not any(shown.marks["accuracy"])
