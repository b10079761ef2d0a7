"""Tables of a grid: ranked combinations, and averages of rows and columns, by hand."""

from copy import deepcopy
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.config.settings import GridMember, ReportedRounds
from fedloom.planning.load_plan import resolve
from fedloom.report import metrics, tables
from shown_runs import shown, table_job


@pytest.fixture
def runs(tmp_path):
    """Return make(axes, partitions, seeds): runs of a grid with given accuracies in percent.

    `partitions` has, by scenario, {values on the axes: accuracy}.
    """

    def make(axes, partitions, seeds=(0,)):
        items = []
        for partition, accuracies in partitions.items():
            for (values, accuracy), seed in product(accuracies.items(), seeds):
                path = tmp_path / f"{len(items)}.parquet"
                columns = {"round": [1], "client_id": 0, "participating": True, "num_test": 100}
                columns |= {"num_correct": accuracy + 2 * seed, "personalized": False}
                pd.DataFrame(columns).to_parquet(path)
                at = dict(zip(axes, values, strict=True))
                member = GridMember("g", 0, at, at, "G")
                items.append(
                    shown(partition=partition, method=f"g.{values}", seed=seed, evaluation=path,
                          reported=ReportedRounds((1,)), member=member)
                )  # fmt: skip
        return items

    return make


LENGTHS = {(4, 4): 70, (4, 8): 90, (8, 4): 80, (8, 8): 60, (16, 4): 90}


def _built(kind, series, published=None, **settings):
    job = replace(table_job(kind, **settings), published=published)
    return tables.instantiate_kind(job).build(series, job)


def _rows(built):
    return built.texts.cells.to_numpy().tolist()


def test_tables_show_the_titles_of_axes_and_keep_their_names_in_files(runs):
    series = runs(["lengths.0", "lengths.1"], {"p": LENGTHS})
    titles = {"lengths.1": "Length of Domain 2 (oil)"}
    named = [
        replace(run, member=replace(metrics.member(run), axis_titles=titles)) for run in series
    ]
    ranked = _built("ranked", named)
    assert ranked.texts.titles[1:3] == ["lengths.0", "Length of Domain 2 (oil)"]
    assert "combinations of lengths.0, Length of Domain 2 (oil) by" in ranked.caption
    averages = _built("grid_averages", named)
    assert averages.texts.titles[0] == "Length of Domain 2 (oil) / lengths.0"
    for table in (ranked, averages):
        assert {"lengths.0", "lengths.1"} <= {*table.frame}


def test_combinations_are_ranked_and_the_middle_is_left_out(runs):
    series = runs(["lengths.0", "lengths.1"], {"p": LENGTHS}, seeds=(0, 1))
    built = _built("ranked", series, best=2, worst=1)
    assert built.texts.titles == ["Rank", "lengths.0", "lengths.1", "Mean accuracy"]
    assert _rows(built) == [
        ["1", "4", "8", "91.00 ± 1.41"],  # equal ones keep the grid's order
        ["2", "16", "4", "91.00 ± 1.41"],
        ["...", "...", "...", "..."],
        ["5", "8", "8", "61.00 ± 1.41"],
        ["mean of 5", "", "", "79.00"],
    ]
    assert built.frame["accuracy"].tolist() == [91, 91, 81, 71, 61, 79], "the files have them all"
    (warning,) = built.texts.notes
    assert "found among many by its accuracy on these test images" in warning


def test_few_combinations_are_all_shown(runs):
    series = runs(["lengths.0", "lengths.1"], {"p": LENGTHS})
    ranks = [row[0] for row in _rows(_built("ranked", series, best=10, worst=1))]
    assert ranks == ["1", "2", "3", "4", "5", "mean of 5"]
    ranks = [row[0] for row in _rows(_built("ranked", series, best=4, worst=1))]
    assert ranks == ["1", "2", "3", "4", "5", "mean of 5"]
    ranks = [row[0] for row in _rows(_built("ranked", series, best=1, worst=0))]
    assert ranks == ["1", "...", "mean of 5"]


def test_every_scenario_has_its_own_ranking(runs):
    other = {values: 100 - accuracy for values, accuracy in LENGTHS.items()}
    series = runs(["lengths.0", "lengths.1"], {"p": LENGTHS, "q": other})
    built = _built("ranked", series, best=1, worst=0)
    assert [row[:4] for row in _rows(built)] == [
        ["p", "1", "4", "8"], ["p", "...", "...", "..."], ["p", "mean of 5", "", ""],
        ["q", "1", "8", "8"], ["q", "...", "...", "..."], ["q", "mean of 5", "", ""],
    ]  # fmt: skip


def _published(**columns):
    values = {
        "4, 8": {"X": {"participating_mean": [95.45]}},
        "mean": {"X": {"participating_mean": [94.36]}},
        "alpha 1, rho 0.3": {"X": {"participating_mean": [97.5]}},
        "alpha all, rho 0.3": {"X": {"participating_mean": [96.5]}},
        "alpha all, rho all": {"Y": {"participating_mean": [93.5]}},
    }
    return {"citation": "Someone", "table": 7, "columns": columns, "values": values}


def test_a_papers_combinations_are_found_by_their_values(runs):
    series = runs(["lengths.0", "lengths.1"], {"p": LENGTHS})
    built = _built("ranked", series, _published(**{"d/p": "X"}), best=1, worst=1)
    assert [row[-1] for row in _rows(built)] == ["95.45", "-", "-", "94.36"]
    assert built.texts.titles[-1] == "Published"


SWEEP = {(0.3, 1.0): 80, (0.3, 2.0): 60, (0.5, 1.0): 90, (0.5, 2.0): 50}


def test_rows_and_columns_have_their_averages(runs):
    series = runs(["rho", "alpha"], {"p": SWEEP}, seeds=(0, 1))
    built = _built("grid_averages", series)
    assert built.texts.titles == ["alpha / rho", "0.3", "0.5", "Average"]
    assert _rows(built) == [
        ["1", "81.00", "91.00", "86.00"],
        ["2", "61.00", "51.00", "56.00"],
        ["Average", "71.00", "71.00", "71.00"],
    ]


def test_several_scenarios_begin_with_their_average(runs):
    other = {values: accuracy - 10 for values, accuracy in SWEEP.items()}
    series = runs(["rho", "alpha"], {"p": SWEEP, "q": other})
    built = _built("grid_averages", series, _published(**{"d/p": "X", "average": "Y"}))
    assert built.texts.titles == ["Partition", "alpha / rho", "0.3", "0.5", "Average"]
    assert [row[:3] for row in _rows(built)] == [
        ["average", "1", "75.00"], ["average", "2", "55.00"], ["average", "Average", "65.00"],
        ["p", "1", "80.00 (97.50)"], ["p", "2", "60.00"], ["p", "Average", "70.00 (96.50)"],
        ["q", "1", "70.00"], ["q", "2", "50.00"], ["q", "Average", "60.00"],
    ]  # fmt: skip
    assert _rows(built)[2][-1] == "65.00 (93.50)"


def test_a_combination_that_was_not_run_is_a_dash(runs):
    some = {values: accuracy for values, accuracy in SWEEP.items() if values != (0.5, 2.0)}
    built = _built("grid_averages", runs(["rho", "alpha"], {"p": some}))
    assert _rows(built)[1] == ["2", "60.00", "-", "60.00"]


@pytest.mark.parametrize(
    ("section", "output", "grid", "line"),
    [
        ("tables", {"kind": "grid_averages"}, ["prompts"], "must have 2 axes; the grid g has 1"),
        ("figures", {"kind": "scatter3d"}, ["prompts", "training.lr"], "the grid g has 2"),
        ("figures", {"kind": "option_line", "option": "prompt"}, ["prompts"],
         "figures.o.option: the grid g has no axis 'prompt'; did you mean 'prompts'"),
        ("figures", {"kind": "option_line", "metrics": ["global"]}, ["prompts"],
         "metric global needs study.global_test: true"),
        ("figures", {"kind": "two_metrics"}, ["prompts"], "needs study.global_test: true"),
        ("tables", {"kind": "ranked"}, [], "the study runs none of its methods that is of a grid"),
    ],
)  # fmt: skip
def test_a_kind_that_the_study_cannot_show_is_one_line(section, output, grid, line):
    config = deepcopy(default_config())
    values = {"prompts": [1, 2], "training.lr": [0.1, 0.3]}
    entry = {"plugin": "fedvpt"} | ({"grid": {axis: values[axis] for axis in grid}} if grid else {})
    config["methods"]["g"] = entry
    config[section]["o"] = output
    config["select"] |= {"methods": ["g"], "figures": [], section: ["o"]}
    if section == "figures":
        config["select"]["tables"] = ["main"]
    with pytest.raises(FedLoomError, match=line):
        resolve(config)
