"""Papers' claims: what the files say, how they meet a study's methods, and the table."""

import math
from copy import deepcopy
from dataclasses import replace

import pandas as pd
import pytest

import shown_runs
from default_config import default_config
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.plan import claims as plan_claims
from fedloom.plan import shipped
from fedloom.plan.claims import read_claims
from fedloom.plan.plan import Plan
from fedloom.plan.resolve import resolve
from fedloom.plan.runs import Reported
from fedloom.report import tables
from fedloom.report.tables import claims
from shown_runs import RUN, shown, table_job

PAPERS = sorted(path.stem for path in (ROOT / "workflow/claims").glob("*.yaml"))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_has_rows_settings_and_numbers_that_exist(paper):
    content = read_claims(paper, "x")
    assert len(content["claims"]) >= 10
    assert len({claim["says"] for claim in content["claims"]}) == len(content["claims"])
    used = {name for claim in content["claims"] for name in (*claim["in"], *claim.get("from", ()))}
    assert used == set(content["settings"]), "every setting is of some claim"
    compared = {row for c in content["claims"] for row in (c.get("above"), *c["below"])} - {None}
    assert compared == set(content["rows"]), "every row is of some claim"


def _claims(paper):
    return {claim["says"]: claim for claim in read_claims(paper, "x")["claims"]}


def test_the_papers_differences_are_those_of_its_tables():
    pep = _claims("pep_fedpt")
    best = pep["PEP-FedPT has the highest mean accuracy of all methods under label heterogeneity"]
    # over pFedPG 95.46 - 92.96 and 91.52 - 82.93; over FedVPT-D 88.75 - 88.60 and 83.44 - 83.30
    assert best["printed"] == {"pathological": [2.5, 8.59], "dirichlet": [0.14, 0.15]}
    fails = pep["pFedPG is accurate on clients that train and fails on those held out"]
    assert fails["printed"]["pathological"] == [81.28, 84.97]  # 86.09 - 4.81, 93.32 - 8.35
    sgpt = _claims("sgpt")["SGPT loses less than the others as clients hold fewer classes"]
    # from 86.72 to 84.64 it loses 2.08, Head-Tune only 1.34
    assert sgpt["printed"] == {"10 classes": [-0.74, -0.74]}
    assert _claims("fedpha")["FedPHA has the highest accuracy at one shot as well"]["printed"] == {
        "one shot": None
    }


def test_what_pfpt_says_of_cifar10_is_not_said_of_other_data():
    pfpt = _claims("pfpt")
    below = pfpt["SCAFFOLD-PT and FedOpt-PT fall below plain averaging on CIFAR-10"]
    # to the better one of the two: 93.05 - 91.82, 91.21 - 87.06
    assert below["printed"] == {"few classes": [1.23, 4.15]}
    behind = [claim for says, claim in pfpt.items() if says.startswith("pFedPG falls behind PFPT")]
    # 91.45 - 43.16 under imbalance, 94.39 - 88.00 and 93.39 - 77.25 else
    assert [claim["printed"]["CIFAR-10 imbalance"] for claim in behind] == [
        [pytest.approx(48.29 - 6.39)] * 2, [pytest.approx(48.29 - 16.14)] * 2,
    ]  # fmt: skip


def _agrees(printed, within):
    if within is None:
        return printed[0] > 0
    low, high = within
    return (low is None or low <= printed[0]) and (high is None or printed[1] <= high)


def test_no_paper_contradicts_its_claims_but_where_known():
    """The claim that its own table denies is found by the numbers beside it."""
    against = [
        (paper, claim["says"])
        for paper in PAPERS
        for claim in read_claims(paper, "x")["claims"]
        for printed in claim["printed"].values()
        if printed and not _agrees(printed, claim.get("within"))
    ]
    assert against == [
        (
            "fedpha",
            "alpha hardly matters, 2.0 or 1.0 differ by less than 0.2 points, as is typical",
        ),
        ("sgpt", "SGPT loses less than the others as clients hold fewer classes"),
    ]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"above": "A", "below": "C"}, r"above or below: no 'C' there; known: A, B"),
        ({"above": "A"}, r"give above and below, or above and from, or untested"),
        ({"above": "A", "below": "B", "in": {"far": []}}, r"in or from: no 'far' there"),
        ({"above": "A", "below": "B", "from": {"near": [], "wide": []}}, r"from: give one setting"),
        ({"above": "A", "below": "B", "within": 2}, r"claims\[0\].*'bound'"),
        (
            {"above": "A", "below": "B", "within": [2, 1], "bound": "ours"},
            r"within: give two ends, the lower one first",
        ),
        ({"above": "A", "below": "B", "saying": 1}, r"claims\[0\].saying: unknown key"),
        (
            {"above": "A", "below": "B", "table": 1, "in": {"near": ["No"]}},
            r"Table 1 has no .*'No'",
        ),
    ],
)
def test_a_file_of_claims_that_is_wrong_is_one_line(change, line, tmp_path, monkeypatch):
    (tmp_path / "pep_fedpt.yaml").write_text(
        "rows: {A: {plugin: fedvpt}, B: {plugin: sgpt}}\n"
        "settings: {near: x, wide: y}\n"
        f"claims: [{ {'says': 's', 'where': 'w', 'in': {'near': []}} | change }]\n"
    )
    monkeypatch.setattr(plan_claims, "FOLDER", tmp_path)
    with pytest.raises(FedLoomError, match=line) as error:
        read_claims("pep_fedpt", "x")
    assert "\n" not in str(error.value)


def _resolved(**entry):
    config = deepcopy(default_config())
    config["methods"]["pep_5"] = {"plugin": "pep_fedpt", "options": {"shared_prompts": 5}}
    config["methods"]["deep"] = {"plugin": "fedvpt_deep", "options": {"prompts": 2}}
    config["methods"]["no_ccmp"] = {"plugin": "pep_fedpt", "options": {"ccmp": False}}
    config["select"]["methods"] = ["fedvpt", "deep", "pep_fedpt", "pep_5", "no_ccmp"]
    config["tables"] = {"t": {"kind": "claims", "paper": "pep_fedpt"} | entry}
    config["select"] |= {"tables": ["t"], "figures": []}
    return resolve(config).tables["t"]


def test_labels_stand_for_the_rows_whose_plugin_and_options_they_have():
    labels = _resolved().settings["labels"]
    assert labels == {"FedVPT": "fedvpt", "PEP-FedPT": "pep_fedpt", "without CCMP": "no_ccmp"}
    named = _resolved(rows={"deep": "FedVPT-D", "pep_5": ["PEP-FedPT", "10 shared prompts"]})
    assert named.settings["labels"]["FedVPT-D"] == "deep"
    assert named.settings["labels"]["10 shared prompts"] == "pep_5"
    assert _resolved(methods=["pep_fedpt", "fedvpt"]).settings["labels"] == {
        "FedVPT": "fedvpt", "PEP-FedPT": "pep_fedpt",
    }  # fmt: skip


def _labels(rows, **methods):
    """The labels of rows among methods of a paper, by their plugins and options."""
    config = deepcopy(default_config())
    config["methods"] = methods
    config["select"] |= {"methods": list(methods), "tables": [], "figures": []}
    settings = resolve(config)
    entries = {row: {"options": {}, "wrappers": [], "free": []} | rows[row] for row in rows}
    return plan_claims.labels_of(entries, [settings.methods[m] for m in methods], {})


def test_a_title_is_no_match_where_the_row_states_other_options():
    """pFedPG's FedVPT has ten prompts; a label of that title with one is another method."""
    rows = {"FedVPT": {"plugin": "fedvpt", "options": {"prompts": 10}}}
    one = {"plugin": "fedvpt", "title": "FedVPT"}
    ten = {"plugin": "fedvpt", "title": "FedVPT", "options": {"prompts": 10, "weighted": True}}
    assert _labels(rows, one=one) == {}
    assert _labels(rows, one=one, ten=ten) == {"FedVPT": "ten"}, "weighted is not stated"
    assert _labels(rows, other={"plugin": "p_pt", "title": "FedVPT"}) == {}
    exact = {"plugin": "fedvpt", "title": "x", "options": {"prompts": 10}}
    assert _labels(rows, ten=ten, exact=exact) == {"FedVPT": "exact"}


def test_free_options_may_have_any_value():
    rows = {
        "FedVPT": {"plugin": "fedvpt", "free": ["weighted"]},
        "ten": {"plugin": "fedvpt", "options": {"prompts": 10}, "free": ["weighted"]},
    }
    methods = {
        "a": {"plugin": "fedvpt", "title": "x", "options": {"weighted": True}},
        "b": {"plugin": "fedvpt", "title": "y", "options": {"weighted": True, "prompts": 10}},
    }
    assert _labels(rows, **methods) == {"FedVPT": "a", "ten": "b"}
    with pytest.raises(FedLoomError, match=r"rows.FedVPT.free: no option 'weight'; did you mean"):
        _labels({"FedVPT": {"plugin": "fedvpt", "free": ["weight"]}}, **methods)


def _study_labels(name, paper):
    """The rows of a paper that the methods of a shipped study stand for."""
    settings = Plan.load([shipped.FOLDER / f"{name}.yaml"]).settings
    methods = [settings.methods[label] for label in settings.methods]
    methods = [m for m in methods if m.label in settings.select.methods]
    return plan_claims.labels_of(read_claims(paper, "x")["rows"], methods, {})


def test_rows_of_shipped_studies():
    assert "FedVPT" not in _study_labels("micro/micro_vit", "pfedpg"), "one prompt, not ten"
    assert _study_labels("fedpha/table8", "fedpha") == {
        "FedPHA": "fedpha_sensitivity.0.8-1", "rho 0.3": "fedpha_sensitivity.0.3-1",
        "rho 1.0": "fedpha_sensitivity.1-1", "alpha 0.5": "fedpha_sensitivity.0.8-0.5",
        "alpha 1.5": "fedpha_sensitivity.0.8-1.5", "alpha 2.0": "fedpha_sensitivity.0.8-2",
    }  # fmt: skip
    labels = _study_labels("sgpt/table2", "sgpt")
    assert labels["FedVPT"] == "fedvpt_10_weighted" and labels["SGPT"] == "sgpt_4_groups"


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"paper": "pep"}, "tables.t.paper: no 'pep'; known: fedpha, pep_fedpt"),
        ({"rows": {"pep_6": "PEP-FedPT"}}, "rows: no 'pep_6' here; did you mean 'pep_5'"),
        ({"rows": {"pep_5": "PEP"}}, "rows.pep_5: no 'PEP' in the claims"),
        ({"stands_for": {"a/b": "domains"}}, "stands_for: no 'a/b' here"),
        ({"stands_for": {"styles/domains": "domain"}}, "no 'domain' in the claims; did you mean"),
    ],
)
def test_a_table_of_claims_that_is_wrong_is_one_line(entry, line):
    with pytest.raises(FedLoomError, match=line):
        _resolved(**entry)


def _evaluation(path, accuracies, held_out=(), overall=None):
    """Clients with these accuracies in percent, of a hundred images each."""
    rows = [
        {
            "round": 1, "client_id": k, "domain": "x", "participating": k < len(accuracies),
            "personalized": False, "num_test": 100, "num_correct": value,
        }
        for k, value in enumerate([*accuracies, *held_out])
    ]  # fmt: skip
    if overall is not None:
        rows.append(
            rows[0] | {"client_id": SERVER_MODEL, "participating": False, "num_correct": overall}
        )
    pd.DataFrame(rows).to_parquet(path)
    return path


CLAIM = {
    "says": "A is best", "where": "Table 1", "above": "A", "below": ["B", "C"],
    "metric": "participating_mean", "in": {"near": []}, "printed": {"near": [1.0, 2.5]},
}  # fmt: skip


@pytest.fixture
def built(tmp_path):
    """Builds the table of some claims on two methods, in scenario d/p (and d/q): three seeds."""

    def build(*changes, **entry):
        runs = []
        for partition, gap in (("p", 5), ("q", 15)):
            for method, level in (("a", 70), ("b", 70 - gap)):
                for seed in range(3):
                    path = tmp_path / f"{partition}{method}{seed}.parquet"
                    clients = [level + seed, level + seed, level + 2 + seed]
                    _evaluation(
                        path, clients, [level - 30] * 2, level - 10 + (seed if method == "a" else 0)
                    )
                    rounds = tmp_path / f"{method}.rounds.parquet"
                    columns = {"round": [1], "bytes_up": 80 if method == "a" else 400, "clients": 2}
                    columns |= {"bytes_down": 8, "processor_seconds": 1.0}
                    pd.DataFrame(columns).to_parquet(rounds)
                    runs.append(
                        shown(partition=partition, method=method, title=method.upper(), seed=seed,
                              evaluation=path, rounds=rounds)
                    )  # fmt: skip
        listed = [CLAIM | change for change in changes]
        settings = {
            "paper": "x", "citation": "Someone", "claims": listed, "labels": {"A": "a", "B": "b"},
            "stands_for": {"d/p": ["near"], "d/q": ["wide"]},
        } | entry  # fmt: skip
        return claims.build(runs, table_job("claims", **settings))

    return build


def _only(table):
    (row,) = table.frame.to_dict("records")
    return row


def test_a_row_has_difference_interval_verdict_and_what_is_missing(built):
    row = _only(built({}))
    assert row["scenario"] == "d/p/b" and row["rival"] == "B" and row["seeds"] == 3
    assert row["difference"] == pytest.approx(5)
    assert (row["low"], row["high"]) == pytest.approx((5, 5))
    assert (row["verdict"], row["reason"]) == ("holds", "without C")
    cells = built({}).texts.cells.iloc[0].tolist()
    assert cells == [
        "A is best", "Table 1", "near", "+1.00 to +2.50", "d/p/b", "+5.00", "[+5.00, +5.00]", "B",
        "3", "holds (without C)",
    ]  # fmt: skip


def test_a_claim_the_other_way_round_does_not_hold(built):
    row = _only(built({"above": "B", "below": ["A"]}))
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
        ({"metric": "params_up", "above": "B", "below": ["A"]}, 50 - 10),
    ],
)
def test_every_metric_by_hand(built, change, difference):
    assert _only(built(change))["difference"] == pytest.approx(difference)


def test_a_bound_has_a_direction_and_says_whose_it_is(built):
    better = {"within": [0, 6], "bound": "ours"}
    made = built(better)
    assert _only(made)["verdict"] == "holds"
    assert made.texts.cells["claim"].tolist() == ["A is best (bound: ours)"]
    worse = built(better | {"above": "B", "below": ["A"], "bound": "paper"})
    assert (_only(worse)["difference"], _only(worse)["verdict"]) == (-5, "does not hold")
    assert worse.texts.cells["claim"].tolist() == ["A is best"]


def test_global_accuracy_is_compared_over_seeds_alone(built):
    row = _only(built({"metric": "global"}))
    assert row["difference"] == pytest.approx(5 + 1)  # seeds 0, 1, 2 are 5, 6, 7 apart
    assert row["low"] == pytest.approx(6 - 4.303 / 3**0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"untested": "a figure"}, "a figure"),
        ({"above": "D"}, "no run of D, C"),
        ({"below": ["C"]}, "no run of C"),
        ({"in": {"far": []}}, "no such setting here"),
        ({"in": {"far": [], "near": []}, "above": "D"}, "no run of D, C"),
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
    """As PEP-FedPT reports iNaturalist: clients are many, and the worst of them always 0."""
    monkeypatch.setattr(shown_runs, "RUN", replace(RUN, reported=Reported((1,), (1,))))
    row = _only(
        built({"metric": "participating_worst", "below": ["A"], "below_metric": "held_out_mean"})
    )
    assert row["difference"] == pytest.approx(70 + 1 + 2 / 3 - 40)


def test_costs_are_compared_at_a_target(built):
    row = _only(built({"metric": "million_params", "above": "B", "below": ["A"]}, target=60))
    assert row["difference"] == pytest.approx((50 - 10) / 1e6)


def test_numbers_that_a_client_sends_are_compared_in_one_seed(tmp_path):
    runs = []
    for method, sent in (("a", 400), ("b", 80)):
        rounds = tmp_path / f"{method}.parquet"
        columns = {"round": [1], "bytes_up": sent, "bytes_down": 8, "clients": 2}
        pd.DataFrame(columns).to_parquet(rounds)
        runs.append(shown(method=method, title=method.upper(), rounds=rounds))
    claim = CLAIM | {"metric": "params_up", "below": ["B"]}
    entry = {"paper": "x", "citation": "Someone", "claims": [claim], "stands_for": {}}
    row = _only(claims.build(runs, table_job("claims", labels={"A": "a", "B": "b"}, **entry)))
    assert (row["verdict"], row["difference"], row["seeds"]) == ("holds", 50 - 10, 1)


def test_a_method_that_stays_below_the_target_took_longer_than_one_that_does_not(built):
    """A reaches 67 % in each of three seeds; B does not, and all that is known is a bound."""
    costs = {"metric": "million_params", "above": "B", "below": ["A"]}
    made = built(costs, target=67)
    row = _only(made)
    assert (row["verdict"], row["reason"]) == ("holds", "B below 67 %")
    assert row["difference"] == pytest.approx(40e-6) and row["high"] == math.inf
    cells = made.texts.cells.iloc[0]
    assert (cells["difference"], cells["interval"]) == ("> +0.00", "above +0.00")
    row = _only(built(costs | {"above": "A", "below": ["B"]}, target=67))
    assert (row["verdict"], row["low"]) == ("does not hold", -math.inf)
    made = built(costs, target=99)
    row = _only(made)
    assert (row["verdict"], row["reason"]) == ("undecided", "B, A below 99 %")
    cells = made.texts.cells.iloc[0]
    assert (cells["difference"], cells["interval"]) == ("-", "-")


def test_claims_that_were_not_run_come_last(built):
    table = built({"untested": "a figure"}, {}, {"above": "B", "below": ["A"]}).frame
    assert table["verdict"].tolist() == ["holds", "does not hold", "not run"]


def test_a_claim_that_was_not_run_names_all_its_settings(built):
    both = {"in": {"far": [], "farther": []}, "printed": {"far": [1.0, 2.0], "farther": [3.0, 4.0]}}
    row = _only(built(both))
    assert (row["setting"], row["printed_low"], row["printed_high"]) == ("far, farther", 1, 4)


def test_without_settings_every_scenario_is_tested(built):
    """Once, whatever settings the claim is about; a change needs to know from which to which."""
    both = {"in": {"near": [], "wide": []}, "printed": {"near": [1.0, 2.5], "wide": [-1.0, 0.5]}}
    table = built(both, {"from": {"wide": []}}, stands_for={}).frame
    assert table["scenario"].tolist() == ["d/p/b", "d/q/b", "-"]
    assert table["setting"].tolist() == ["any", "any", "near"]
    assert table["printed_low"].tolist()[:2] == [-1, -1]
    assert table["printed_high"].tolist()[:2] == [2.5, 2.5]


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
    entry = {
        "paper": "x", "citation": "Someone", "claims": [CLAIM | {"from": {"wide": []}}],
        "labels": {"A": "a", "B": "b"},
        "stands_for": {f"{d}/{p}": [p] for d in "xy" for p in ("wide", "near")},
    }  # fmt: skip
    table = claims.build(runs, table_job("claims", **entry)).frame
    assert table["scenario"].tolist() == ["x/wide/b to x/near/b", "y/wide/b to y/near/b"]
    entry["stands_for"] = {"x/wide": ["wide"], "y/near": ["near"]}
    row = _only(claims.build(runs, table_job("claims", **entry)))
    assert (row["verdict"], row["reason"]) == ("not run", "no data set in both settings")


def test_the_caption_counts_what_several_rivals_leave_undecided(built):
    frame = built({}, {"untested": "a figure"}).frame
    frame.loc[0, ["verdict", "corrected"]] = ["undecided", True]
    text = claims.caption(table_job("claims", citation="Someone"), [shown()], frame)
    assert text.endswith(
        "undecided, 1 only since there are several others; few seeds decide little, as 1 here."
    )


def test_the_table_is_written_in_every_format(built, tmp_path, monkeypatch):
    made = built({}, {"untested": "a figure"})
    monkeypatch.setattr(claims, "build", lambda runs, job: made)
    outputs = {kind: tmp_path / f"t.{kind}" for kind in ("md", "csv", "tex", "html", "parquet")}
    tables.write(table_job("claims"), [], outputs)
    text = outputs["md"].read_text()
    assert "only since there are several" not in text
    assert "what Someone claims" in text and "1 holds, 1 not run" in text
    assert "| holds (without C)" in text and "not run (a figure)" in text
    assert "95 \\% interval" in outputs["tex"].read_text()
    assert pd.read_parquet(outputs["parquet"])["verdict"].tolist() == ["holds", "not run"]
