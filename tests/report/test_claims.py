"""Papers' claims: the table of them, and the verdicts that runs give."""

import math
from dataclasses import replace

import pandas as pd
import pytest

import shown_runs
from fedloom.common.ids import SERVER_MODEL
from fedloom.config.settings import ReportedRounds
from fedloom.report import tables
from fedloom.report.tables import claim_text, layout
from fedloom.report.tables.claims import Claims
from shown_runs import RUN, filled, shown, table_files, table_job


def _evaluation(path, accuracies, held_out=(), overall=None, domains="x", earlier=None):
    """Write an evaluation of clients with these accuracies in percent, of 100 images each.

    The accuracies `earlier` are those of a round before.
    """
    rows = [
        {
            "round": number, "client_id": k, "domain": domains[k % len(domains)],
            "participating": k < len(accuracies), "personalized": False, "num_test": 100,
            "num_correct": value,
        }
        for number, values in ((0, earlier or []), (1, [*accuracies, *held_out]))
        for k, value in enumerate(values)
    ]  # fmt: skip
    if overall is not None:
        rows.append(
            rows[0] | {"client_id": SERVER_MODEL, "participating": False, "num_correct": overall}
        )
    pd.DataFrame(rows).to_parquet(path)
    return path


CLAIM = {
    "says": "A is best", "where": "Table 1", "above": ["A"], "below": ["B"],
    "metric": "participating_mean", "average": False, "in": {"near": []},
    "printed": {"near": [1.0, 2.5]},
}  # fmt: skip


def _built(runs, **settings):
    """Return the table of claims on methods a and b, which are the paper's A and B."""
    paper = {"paper": "x", "citation": "Someone", "labels": {"A": "a", "B": "b"}}
    job = table_job("claims", **(paper | settings))
    return tables.instantiate_kind(job).build(runs, job)


@pytest.fixture
def built(tmp_path):
    """Return build(*changes): a table of claims on two methods in d/p and d/q, three seeds each."""

    def build(*changes, **entry):
        runs = []
        for partition, gap in (("p", 5), ("q", 15)):
            for method, level in (("a", 70), ("b", 70 - gap)):
                for seed in range(3):
                    path = tmp_path / f"{partition}{method}{seed}.parquet"
                    own = level + seed + (0.01 * (seed - 1) if method == "a" else 0)
                    clients = [own, own, own + 2]
                    _evaluation(
                        path, clients, [level - 30] * 2, level - 10 + (seed if method == "a" else 0)
                    )
                    rounds = tmp_path / f"{method}.rounds.parquet"
                    columns = {"round": [1], "bytes_up": 80 if method == "a" else 400, "clients": 2}
                    columns |= {"bytes_down": 8, "processor_seconds": 1.0}
                    columns |= {"train_loss": 0.5 if method == "a" else 2.0}
                    filled(columns, "rounds").to_parquet(rounds)
                    runs.append(
                        shown(partition=partition, method=method, title=method.upper(), seed=seed,
                              evaluation=path, rounds=rounds)
                    )  # fmt: skip
        listed = [CLAIM | change for change in changes]
        settings = {"claims": listed, "stands_for": {"d/p": ["near"], "d/q": ["wide"]}}
        return _built(runs, **(settings | entry))

    return build


def _only(table):
    (row,) = table.frame.to_dict("records")
    return row


def test_a_row_has_difference_interval_verdict_and_what_is_missing(built):
    row = _only(built({}))
    assert row["scenario"] == "d/p/b" and row["rival"] == "B" and row["seeds"] == 3
    assert row["difference"] == pytest.approx(5)
    assert (row["low"], row["high"]) == pytest.approx((5, 5), abs=0.03)
    assert (row["verdict"], row["reason"]) == ("holds", "")
    cells = built({}).texts.cells.iloc[0].tolist()
    assert cells == [
        "A is best", "Table 1", "near", "+1.00 to +2.50", "d/p/b", "+5.00", "[+4.98, +5.02]", "B",
        "3", "holds",
    ]  # fmt: skip


def test_a_claim_over_rivals_of_which_one_was_not_run_does_not_hold_yet(built):
    row = _only(built({"below": ["B", "C"]}))
    assert (row["verdict"], row["reason"]) == ("undecided", "without C")
    assert row["difference"] == pytest.approx(5) and row["low"] > 0
    row = _only(built({"above": ["A", "C"]}))
    assert (row["verdict"], row["reason"]) == ("undecided", "without C")
    row = _only(built({"above": ["B"], "below": ["A", "C"]}))
    assert (row["verdict"], row["reason"]) == ("does not hold", "without C"), "one is enough"


def test_a_claim_the_other_way_round_does_not_hold(built):
    row = _only(built({"above": ["B"], "below": ["A"]}))
    assert (row["verdict"], row["difference"]) == ("does not hold", pytest.approx(-5))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"metric": "participating_worst"}, 5),
        ({"metric": "held_out_mean"}, 5),
        ({"metric": "domain_x"}, 5),
        ({"below": ["A"], "below_metric": "held_out_mean"}, 70 + 1 + 2 / 3 - 40),
        ({"from": {"wide": []}}, 5 - 15),
        ({"below": [], "from": {"wide": []}}, 0),
        ({"metric": "params_up", "above": ["B"], "below": ["A"]}, 50 - 10),
        ({"metric": "params_up", "above": ["B"], "below": ["A"], "times": 4}, 50 - 4 * 10),
        ({"metric": "train_loss", "above": ["B"], "below": ["A"]}, 2 - 0.5),
        ({"metric": "each_domain"}, 5),
        ({"metric": "course_mean"}, 5),
        ({"metric": "million_params", "above": ["B"], "below": ["A"]}, (50 - 10) / 1e6),
    ],
)
def test_every_metric_by_hand(built, change, difference):
    assert _only(built(change, target=60))["difference"] == pytest.approx(difference)


def test_every_row_above_is_compared_with_every_row_below(built):
    """Row A is above row B, while row B is not above itself."""
    row = _only(built({"above": ["A", "B"], "below": ["B"]}))
    assert (row["difference"], row["rival"]) == (0, "B over B")
    row = _only(built({"above": ["A", "B"], "below": [], "from": {"wide": []}}))
    assert (row["difference"], row["rival"]) == (pytest.approx(0), "A")


def test_a_number_of_times_is_more_than_above(built):
    sent = {"metric": "params_up", "above": ["B"], "below": ["A"], "bound": "ours"}
    assert _only(built(sent | {"times": 4.9}))["verdict"] == "holds"
    made = built(sent | {"times": 5})
    assert _only(made)["verdict"] == "does not hold", "five times as many, not more"
    assert made.texts.cells["Claim"].tolist() == ["A is best (bound: ours)"]


def _two_methods(tmp_path, **of_a):
    """Return runs of A, and of B with 60 % on three clients, in two seeds."""
    runs = []
    for method, accuracies, more in (("a", [70, 80, 75], of_a), ("b", [60, 60, 60], {})):
        path = _evaluation(
            tmp_path / f"{method}.parquet", accuracies, **({"domains": "xyz"} | more)
        )
        runs += [shown(method=method, title=method, seed=k, evaluation=path) for k in (0, 1)]
    return runs


def _claims(runs, *listed, **entry):
    entry = {"stands_for": {"d/p": ["near"]}, "claims": list(listed)} | entry
    return _built(runs, **entry).frame


def test_the_domain_with_the_smallest_difference_decides_a_claim(tmp_path):
    table = _claims(_two_methods(tmp_path), CLAIM | {"metric": "each_domain"})
    (row,) = table.to_dict("records")
    assert (row["difference"], row["rival"]) == (10, "B in x")
    table = _claims(_two_methods(tmp_path, domains=[None]), CLAIM | {"metric": "each_domain"})
    assert table["reason"].tolist() == ["no domains here"]


def test_the_course_of_training_is_that_of_all_rounds(tmp_path):
    """A has 45 and then 75 % in its two rounds, and B has 60 % in its only round."""
    runs = _two_methods(tmp_path, earlier=[40, 50, 45])
    (row,) = _claims(runs, CLAIM | {"metric": "course_mean"}).to_dict("records")
    assert row["difference"] == pytest.approx((75 + 45) / 2 - 60)


@pytest.fixture
def of_data_sets(tmp_path):
    """Return build(gaps, ...): claims on two methods that differ by a gap on each data set."""

    def build(gaps, *listed, **entry):
        runs = []
        for dataset, gap in gaps.items():
            for method, level in (("a", 60 + gap), ("b", 60)):
                for seed in (0, 1):
                    own = level + (0.01 * seed if method == "a" else 0)
                    path = _evaluation(tmp_path / f"{dataset}{method}{seed}.parquet", [own] * 3)
                    run = shown(dataset=dataset, method=method, title=method, seed=seed)
                    runs.append(replace(run, evaluation=path))
        return _claims(runs, *listed, **entry)

    return build


def test_an_average_is_over_all_scenarios_of_a_setting(of_data_sets):
    """Differences of -3, 2 and 10 points are 3 on average, and are shown as one difference."""
    near = {"stands_for": {"x/p": ["near"], "y/p": ["near"], "z/p": ["near"]}}
    gaps = {"x": -3, "y": 2, "z": 10}
    (row,) = of_data_sets(gaps, CLAIM | {"average": True}, **near).to_dict("records")
    assert row["difference"] == pytest.approx(3, abs=0.01) and row["scenario"] == "x/p/b and 2 more"
    assert row["verdict"] == "holds"
    each = of_data_sets(gaps, CLAIM, **near)
    assert each["verdict"].tolist() == ["does not hold", "holds", "holds"]


def test_a_change_of_an_average_is_between_data_sets(of_data_sets):
    """The lead grows from 2 points on average to 10 on another data set of the same partition."""
    grows = CLAIM | {"average": True, "from": {"wide": []}}
    gaps = {"x": 1, "y": 3, "z": 10}
    wide = {"x/p": ["wide"], "y/p": ["wide"]}
    table = of_data_sets(gaps, grows, stands_for=wide | {"z/p": ["near"]})
    (row,) = table.to_dict("records")
    assert row["difference"] == pytest.approx(10 - (1 + 3) / 2)
    assert row["scenario"] == "x/p/b and 1 more to z/p/b"
    table = of_data_sets(gaps, grows | {"average": False}, stands_for=wide | {"z/p": ["near"]})
    assert table["reason"].tolist() == ["no such setting here"]


def test_a_bound_has_a_direction_and_says_whose_it_is(built):
    better = {"within": [0, 6], "bound": "ours"}
    made = built(better)
    assert _only(made)["verdict"] == "holds"
    assert made.texts.cells["Claim"].tolist() == ["A is best (bound: ours)"]
    worse = built(better | {"above": ["B"], "below": ["A"], "bound": "paper"})
    assert _only(worse)["difference"] == pytest.approx(-5)
    assert _only(worse)["verdict"] == "does not hold"
    assert worse.texts.cells["Claim"].tolist() == ["A is best"]


def test_global_accuracy_is_compared_over_seeds_alone(built):
    row = _only(built({"metric": "global"}))
    assert row["difference"] == pytest.approx(5 + 1)  # seeds 0, 1, 2 are 5, 6, 7 apart
    assert row["low"] == pytest.approx(6 - 4.303 / 3**0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"untested": "a figure"}, "a figure"),
        ({"above": ["D"], "below": ["B", "C"]}, "no run of D, C"),
        ({"below": ["C"]}, "no run of C"),
        ({"in": {"far": []}}, "no such setting here"),
        ({"in": {"far": [], "near": []}, "above": ["D"]}, "no run of D"),
        ({"from": {"far": []}}, "no such setting here"),
        ({"metric": "domain_y"}, "no domain y here"),
        ({"metric": "rounds"}, "the table has no target"),
    ],
)
def test_what_cannot_be_tested_says_why(built, change, reason):
    row = _only(built(change))
    assert (row["verdict"], row["reason"]) == ("not run", reason)
    assert pd.isna(row["difference"])


def test_the_worst_of_many_rounds_is_that_of_the_mean_over_clients(built, monkeypatch):
    """PEP-FedPT reports iNaturalist so, as the worst of its many clients is always at 0 %."""
    monkeypatch.setattr(shown_runs, "RUN", replace(RUN, reported=ReportedRounds((1,), (1,))))
    row = _only(
        built({"metric": "participating_worst", "below": ["A"], "below_metric": "held_out_mean"})
    )
    assert row["difference"] == pytest.approx(70 + 1 + 2 / 3 - 40)


def test_numbers_that_a_client_sends_are_compared_in_one_seed(tmp_path):
    runs = []
    for method, sent in (("a", 400), ("b", 80)):
        rounds = tmp_path / f"{method}.parquet"
        columns = {"round": [1], "bytes_up": sent, "bytes_down": 8, "clients": 2}
        pd.DataFrame(columns).to_parquet(rounds)
        runs.append(shown(method=method, title=method.upper(), rounds=rounds))
    claim = CLAIM | {"metric": "params_up", "below": ["B"]}
    row = _only(_built(runs, claims=[claim], stands_for={"d/p": ["near"]}))
    assert (row["verdict"], row["difference"], row["seeds"]) == ("holds", 50 - 10, 1)


def test_a_method_that_misses_the_target_takes_longest_to_reach_it(built):
    """A reaches 67 % in each of three seeds; B does not, and the runs only bound its cost."""
    costs = {"metric": "million_params", "above": ["B"], "below": ["A"]}
    made = built(costs, target=67)
    row = _only(made)
    assert (row["verdict"], row["reason"]) == ("holds", "B did not reach 67 %")
    assert row["difference"] == pytest.approx(40e-6) and row["high"] == math.inf
    cells = made.texts.cells.iloc[0]
    assert (cells["Difference"], cells["95 % interval"]) == ("> +0.00", "above +0.00")
    row = _only(built(costs | {"above": ["A"], "below": ["B"]}, target=67))
    assert (row["verdict"], row["low"]) == ("does not hold", -math.inf)
    made = built(costs, target=99)
    row = _only(made)
    assert (row["verdict"], row["reason"]) == ("undecided", "B, A did not reach 99 %")
    cells = made.texts.cells.iloc[0]
    assert (cells["Difference"], cells["95 % interval"]) == ("-", "-")


def test_the_text_has_the_claims_that_were_run_and_a_line_on_the_others(built, tmp_path):
    far = {"in": {"far": []}, "where": "Fig. 2 and 3, Section 4"}
    figure = {"untested": "a figure", "where": "Table 5"}
    changes = [figure, far, {}, {"above": ["D"]}, far, {"untested": "a count"}]
    made = built(*changes)
    assert made.texts.cells["Verdict"].tolist() == ["holds"]
    line = (
        "Not run: 5 of 6 claims, which are about Tables 1, 5; Fig. 2, 3. The CSV and Parquet files "
        "of this table have a row for each."
    )
    assert made.texts.notes == (line,)
    assert made.details[-1] == (
        "Claims were not run because of: no run can decide it (2); no such setting here (2); no "
        "run of D (1)."
    )
    outputs = table_files(tmp_path)
    layout.write_formats(made, "tab:x", outputs)
    for kind in ("md", "tex", "html"):
        text = outputs[kind].read_text()
        assert line in text and "a figure" not in text
    assert len(pd.read_csv(outputs["csv"])) == len(pd.read_parquet(outputs["parquet"])) == 6
    assert built({}).texts.notes == ()


def test_tables_and_figures_of_the_paper_are_named_once_and_in_order():
    places = ["Table 7, Fig. 4, 7 to 9, Sections 4.3 and C.2", "Tables 3 and 13, Section 5"]
    places += ["Fig. 6b", "Table 7", "Section 5.2.2", "the main question", "Section 5.2.2"]
    assert claim_text.name_outputs(places) == (
        "Tables 3, 7, 13; Fig. 4, 6b, 7 to 9; Section 5.2.2; the main question"
    )
    assert claim_text.name_outputs(["Table 1, Section 2"]) == "Table 1"
    assert claim_text.name_outputs(["Tables 1-3, Section 5"]) == "Tables 1 to 3"


def test_a_table_of_claims_of_which_none_was_run_has_only_the_line(built, tmp_path):
    made = built({"untested": "a figure"})
    assert made.texts.cells.empty and made.texts.titles[0] == "Claim"
    outputs = table_files(tmp_path)
    layout.write_formats(made, "tab:x", outputs)
    for kind in ("md", "tex", "html"):
        assert "Not run: 1 of 1 claims, which are about Table 1." in outputs[kind].read_text()


def test_claims_that_were_not_run_come_last(built):
    table = built({"untested": "a figure"}, {}, {"above": ["B"], "below": ["A"]}).frame
    assert table["verdict"].tolist() == ["holds", "does not hold", "not run"]


def test_a_claim_that_was_not_run_names_all_its_settings(built):
    both = {"in": {"far": [], "farther": []}, "printed": {"far": [1.0, 2.0], "farther": [3.0, 4.0]}}
    row = _only(built(both))
    assert (row["setting"], row["printed_low"], row["printed_high"]) == ("far, farther", 1, 4)


def test_a_change_is_that_of_one_data_set(tmp_path):
    """Two data sets in both settings are two changes, not four."""
    path = _evaluation(tmp_path / "e.parquet", [70, 80])
    runs = [
        shown(dataset=dataset, partition=partition, method=method, seed=seed, evaluation=path)
        for dataset in ("x", "y")
        for partition in ("wide", "near")
        for method in ("a", "b")
        for seed in (0, 1)
    ]
    changes = [CLAIM | {"from": {"wide": []}}]
    both = {f"{d}/{p}": [p] for d in "xy" for p in ("wide", "near")}
    table = _built(runs, claims=changes, stands_for=both).frame
    assert table["scenario"].tolist() == ["x/wide/b to x/near/b", "y/wide/b to y/near/b"]
    one_each = {"x/wide": ["wide"], "y/near": ["near"]}
    row = _only(_built(runs, claims=changes, stands_for=one_each))
    assert (row["verdict"], row["reason"]) == ("not run", "no such setting here")


def test_the_table_is_written_in_every_format(built, tmp_path, monkeypatch):
    made = built({}, {"untested": "a figure"})
    monkeypatch.setattr(Claims, "build", lambda *_: made)
    outputs = table_files(tmp_path)
    tables.write_table(table_job("claims"), [], outputs)
    text = outputs["md"].read_text()
    assert "claims of Someone, with these verdicts: holds (1), not run (1)." in text
    assert "| holds " in text and "Not run: 1 of 2 claims" in text
    assert "95 \\% interval" in outputs["tex"].read_text()
    assert pd.read_parquet(outputs["parquet"])["verdict"].tolist() == ["holds", "not run"]
