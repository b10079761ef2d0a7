"""The headline of a report: what its sentences say of numbers that are made by hand."""

from copy import deepcopy

import pandas as pd
import pyarrow as pa
import pytest

from default_config import default_config
from fedloom.common.files import write_table
from fedloom.config.settings import ReportedRounds
from fedloom.planning import paths
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.report.figures.style import house_style
from fedloom.report.headline import Headline, describe_scenario, draw_headline, find_headline
from shown_runs import filled, shown


@pytest.fixture
def runs(tmp_path):
    """Return make(accuracies): a run per method and seed, with one client of 1000 test images."""

    def make(accuracies: dict[str, list[float]], partition: str = "p"):
        made = []
        for method, values in accuracies.items():
            for seed, value in enumerate(values):
                path = tmp_path / f"{partition}-{method}-{seed}.parquet"
                row = {"client_id": [0], "round": 2, "participating": True, "personalized": False}
                row |= {"num_test": 1000, "num_correct": round(10 * value)}
                pd.DataFrame(row).to_parquet(path)
                own = shown(
                    partition=partition,
                    method=method,
                    title=method.upper(),
                    seed=seed,
                    evaluation=path,
                    reported=ReportedRounds((2,)),
                )
                made.append(own)
        return made

    return make


def test_a_method_whose_every_lead_is_above_zero_is_ahead(runs):
    """The differences of a and b are 2, 2.5 and 3, and Student's factor of three seeds is 4.303."""
    text = describe_scenario(
        runs({"b": [90, 90, 90], "a": [92, 92.5, 93], "c": [50, 51, 52]}), named=False
    )
    assert text == (
        "The highest mean accuracy is that of “A”, 92.50 %. The second is that of “B”, 90.00 %. "
        "The first is ahead of all others: its least certain lead, over “B”, is 2.50 points, with "
        "a 95 % interval from 1.26 to 3.74."
    )


def test_a_lead_whose_interval_includes_zero_is_not_decided(runs):
    """The differences of a and d are 31, 12 and 3, and half their interval is 35.51."""
    accuracies = {"a": [91, 92, 93], "b": [90, 90, 90], "c": [50, 50.1, 50.2], "d": [60, 80, 90]}
    text = describe_scenario(runs(accuracies), named=True)
    assert text.startswith("The highest mean accuracy on d/p/b is that of “A”, 92.00 %.")
    assert text.endswith(
        "The first is ahead of “C”. The seeds do not decide whether the first is ahead of “B” or "
        "“D”: its lead over “D” is 15.33 points, with a 95 % interval from -20.18 to 50.84."
    )


def test_methods_that_are_behind_are_joined_by_and(runs):
    accuracies = {"a": [91, 92, 93], "b": [90, 91.8, 92], "c": [50, 50.1, 50.2], "d": [40, 40, 40]}
    text = describe_scenario(runs(accuracies), named=False)
    assert "The first is ahead of “C” and “D”. The seeds do not decide" in text
    assert "whether the first is ahead of “B”:" in text


def test_the_same_lead_in_every_seed_is_not_decided(runs):
    text = describe_scenario(runs({"a": [91, 92], "b": [61, 62]}), named=False)
    assert "is 30.00 points" in text and text.endswith("(the same difference in every seed).")


def test_methods_may_be_tested_on_different_clients(runs):
    """A run under attack has no tests of attackers; only equal clients are resampled together."""
    series = runs({"a": [90, 91, 92], "b": [80, 82, 83]})
    for run in series:
        rows = pd.read_parquet(run.evaluation)
        count = 10 if run.method == "a" else 8
        rows = pd.concat([rows.assign(client_id=client) for client in range(count)])
        rows["num_correct"] += 3 * rows["client_id"]
        rows.to_parquet(run.evaluation)
    text = describe_scenario(series, named=False)
    assert "its least certain lead, over “B”, is 9.63 points" in text


def test_many_methods_are_counted(runs):
    accuracies = {"a": [91.0, 93.0]} | {f"b{k}": [90.0, 92.5] for k in range(6)}
    text = describe_scenario(runs(accuracies), named=False)
    assert "The seeds do not decide whether the first is ahead of 6 other methods:" in text


def test_one_seed_decides_nothing(runs):
    text = describe_scenario(runs({"a": [91], "b": [50]}), named=False)
    assert text.endswith("One seed does not decide which method is ahead.")


def test_a_single_method_is_compared_with_none(runs):
    text = describe_scenario(runs({"a": [91, 93]}), named=False)
    assert text == "The highest mean accuracy is that of “A”, 92.00 %."


def test_the_chart_has_a_panel_per_scenario_and_a_row_per_method(runs):
    series = [*runs({"a": [91, 93], "b": [50]}, "p"), *runs({"a": [10, 20], "b": [30]}, "q")]
    with house_style():
        figure = draw_headline(Headline("main", series, []))
        figure.draw_without_rendering()
    assert [axis.get_title() for axis in figure.axes] == ["p", "q"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["A", "B"]


def test_a_headline_is_of_the_first_table_of_mean_accuracy_and_repeats_its_warnings(
    tmp_path, monkeypatch
):
    """The table before it counts costs, and shows no accuracy."""
    monkeypatch.chdir(tmp_path)
    config = deepcopy(default_config())
    config["study"] |= {"seeds": [0, 1], "remark": "Preliminary."}
    config["select"] |= {"methods": ["head_tuning", "fedvpt"], "figures": []}
    config["select"]["tables"] = ["communication", "domains", "main"]
    plan = Plan(resolve(config))
    for run in plan.runs:
        rows = {"round": [8, 10, 12], "client_id": 0, "participating": True, "domain": "plain"}
        rows |= {"personalized": False, "num_test": 100, "num_correct": 80 + run.seed}
        own = paths.path_for(paths.EVALUATION, run)
        write_table(own, pa.Table.from_pandas(filled(rows, "evaluation")))
        losses = filled({"round": [12], "train_loss": 1.0, "guessing_loss": 3.0}, "rounds")
        write_table(paths.path_for(paths.ROUNDS, run), pa.Table.from_pandas(losses))

    headline = find_headline(plan)
    assert headline.table == "domains" and len(headline.runs) == 4
    assert headline.paragraphs[0] == "Preliminary."
    assert "Head-Tuning" in headline.paragraphs[1]
