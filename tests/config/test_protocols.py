"""A run's own protocol: the study's, overridden by its partition's and its method's."""

from copy import deepcopy
from types import SimpleNamespace as Wildcards

import pandas as pd
import pytest

from default_config import default_config
from fedloom.config.protocols import evaluated_rounds, job_ends
from fedloom.config.settings import FAMILIES, ReportedRounds
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.report.metrics import accuracies, pooled
from fedloom.report.tables.accuracy import describe_rounds
from refusals import refused
from shown_runs import shown

DIRICHLET = {"scheme": "dirichlet", "kind": "client", "clients": 20, "alpha": 0.3}
LONG = {
    "rounds": 40,
    "clients_per_round": 7,
    "evaluate_every": 10,
    "report": {"last_evaluations": 2},
    "training": {"lr": 0.5, "epochs": 4, "schedule": "cosine"},
}
METHODS = {
    "slow": {"plugin": "fedvpt", "rounds": 60},
    "own_rate": {"plugin": "fedvpt", "training": {"lr": 0.01}},
}


def _plan(select=(), **sections):
    """Return the plan of the default study with two Dirichlet partitions.

    The partition `long` has another protocol.
    """
    config = deepcopy(default_config())
    config["partitions"] |= {"plain": DIRICHLET, "long": DIRICHLET | {"protocol": LONG}}
    config["methods"] |= METHODS
    config["select"] |= {
        "datasets": ["digits"],
        "partitions": ["plain", "long"],
        "methods": ["fedvpt", "slow", "own_rate", "pep_fedpt"],
        "tables": ["main"],
        "figures": ["accuracy"],
        **dict(select),
    }
    for name, content in sections.items():
        config[name] |= content
    return Plan(resolve(config))


def _of(partition, method, **more):
    labels = {"dataset": "digits", "partition": partition, "backbone": "micro_vit", "seed": "0"}
    return Wildcards(**labels, method=method, **more)


@pytest.mark.parametrize(
    ("partition", "method", "rounds", "clients"),
    [
        ("plain", "fedvpt", 12, 10),
        ("plain", "slow", 60, 10),
        ("long", "fedvpt", 40, 7),
        ("long", "slow", 60, 7),
    ],
)
def test_rounds_are_the_studys_then_the_partitions_then_the_methods(
    partition, method, rounds, clients
):
    plan = _plan()
    study = plan.study(_of(partition, method))
    assert (study.rounds, study.clients_per_round) == (rounds, clients)
    last = job_ends(study)[-1]
    job = plan.job("train", _of(partition, method, end=f"{last:04}"))
    assert job.last == rounds == plan.job("artefact", _of(partition, method, artefact="x")).last
    assert job.spec.clients_per_round == clients
    assert plan.job("evaluate", _of(partition, method)).ends == tuple(job_ends(study))
    assert plan.last_job_file(_of(partition, method), "{end}") == f"{rounds:04}"


def test_training_options_are_the_studys_then_the_partitions_then_the_methods():
    plan = _plan()

    def training(partition, method):
        return plan.run_spec(plan_run(partition, method)).method.training

    def plan_run(partition, method):
        return next(r for r in plan.runs if (r.partition, r.method) == (partition, method))

    assert training("plain", "fedvpt")["lr"] == 0.3
    assert training("long", "fedvpt")["lr"] == 0.5
    assert training("long", "own_rate")["lr"] == 0.01
    assert training("plain", "own_rate")["epochs"] == 1
    assert training("long", "own_rate")["epochs"] == 4
    assert training("long", "own_rate")["momentum"] == 0.9, "the paper's, where nobody says more"
    # a cosine ends with the run's own last round
    assert plan.run_spec(plan_run("long", "fedvpt")).schedule_rounds == 40
    assert plan.run_spec(plan_run("long", "slow")).schedule_rounds == 60
    assert plan.run_spec(plan_run("plain", "slow")).schedule_rounds is None


def test_evaluations_and_what_tables_report_are_the_runs_own():
    plan = _plan()
    assert evaluated_rounds(plan.study(_of("long", "fedvpt"))) == [10, 20, 30, 40]
    reported = plan.job("table", Wildcards(label="main")).shown.reported
    assert reported == {
        "plain": ReportedRounds((8, 10, 12)),
        "plain/slow": ReportedRounds((56, 58, 60)),
        "long": ReportedRounds((30, 40)),
        "long/slow": ReportedRounds((50, 60)),
    }


def test_a_protocol_changes_neither_the_partition_nor_a_run_elsewhere():
    plain = _plan({"partitions": ["plain"]})
    other = _plan()
    asked = Wildcards(dataset="digits", partition="long", seed="1")
    assert "protocol" not in other.job("partition", asked).partition.settings
    first = plain.runs[0]
    assert plain.run_spec(first) == other.run_spec(first)
    warm = Wildcards(**vars(asked), backbone="micro_vit")
    assert other.job("prototypes", warm).clients_per_round == 7


def test_trials_have_the_rounds_of_their_runs_unless_tune_says_them():
    tune = {"trials": 2, "values": {"training.lr": [0.1, 0.3]}}
    own, given = (_plan(study={"tune": tune | more}) for more in ({}, {"rounds": 3}))
    for plan, rounds in ((own, 60), (given, 3)):
        job = plan.job("choose", _of("long", "slow"))
        trial = plan.study(_of("long.validation", job.trials[0].label))
        assert (job.last, trial.rounds, trial.seeds) == (rounds, rounds, [1000])
        assert trial.clients_per_round == 7
        method = plan.job(
            "train", _of("long.validation", job.trials[1].label, end="0003")
        ).spec.method
        assert (method.training["lr"], method.training["epochs"]) == (0.3, 4)
    tuned = own.job("table", Wildcards(label="main")).tuned
    assert tuned is not None and tuned.rounds == (12, 40, 60)


# ---- which runs ---------------------------------------------------------------------------------


def test_the_runs_of_a_study_are_those_that_its_outputs_show():
    tables = {
        "first": {"kind": "accuracy", "scenarios": ["digits/plain"], "methods": ["fedvpt"]},
        "second": {"kind": "accuracy", "scenarios": ["digits/long"], "methods": ["slow"]},
    }
    plan = _plan({"tables": ["first", "second"], "figures": []}, tables=tables)
    assert [(r.partition, r.method, r.seed) for r in plan.runs] == [
        *(("plain", "fedvpt", seed) for seed in (0, 1)),
        *(("long", "slow", seed) for seed in (0, 1)),
    ]
    shown = plan.job("table", Wildcards(label="second")).shown
    assert shown.scenarios == ("digits/long/micro_vit",) and shown.reported.keys() == {
        "long",
        "long/slow",
    }
    assert len(plan.partition_charts) == 2
    alone = _plan({"tables": ["first"], "figures": []}, tables=tables)
    assert ["plain" in chart for chart in alone.partition_charts] == [True]


def test_scenarios_stand_in_place_of_crossed_datasets_and_partitions():
    chosen = {"scenarios": ["glyphs/long", "digits/plain"]}
    plan = _plan(chosen)
    assert [(r.dataset, r.partition) for r in plan.runs if (r.method, r.seed) == ("slow", 0)] == [
        ("glyphs", "long"),
        ("digits", "plain"),
    ]
    assert plan.settings.select.datasets == ("glyphs", "digits")


def test_outputs_may_show_different_backbones_with_the_methods_that_fit(monkeypatch):
    monkeypatch.setitem(FAMILIES, "open_clip", "clip")
    tables = {
        "vit": {"kind": "accuracy", "backbones": ["micro_vit"], "methods": ["fedvpt"]},
        "clip": {"kind": "accuracy", "backbones": ["micro_clip"], "methods": ["promptfl"]},
        "both": {"kind": "accuracy", "methods": ["promptfl"]},
    }
    select = {"backbones": ["micro_vit", "micro_clip"], "methods": ["fedvpt", "promptfl"]}
    select |= {"figures": []}
    plan = _plan(select | {"tables": ["vit", "clip"]}, tables=tables)
    pairs = {(run.backbone, run.method) for run in plan.runs}
    assert pairs == {("micro_vit", "fedvpt"), ("micro_clip", "promptfl")}
    with refused("tables.both", "methods.promptfl", "backbones.micro_vit"):
        _plan(select | {"tables": ["both"]}, tables=tables)


def _protocol(**keys):
    return {"partitions": {"p": DIRICHLET | {"protocol": keys}}}


PLAIN = {"partitions": ["plain"]}
P = {"partitions": ["p"]}
WORST = {"report": {"last_evaluations": 1, "worst_of_evaluations": 7}}
ELSEWHERE = {"tables": {"t": {"kind": "accuracy", "scenarios": ["digits/iid"]}}}
SHORT = {"methods": {"short": {"plugin": "fedvpt", "rounds": 4}}}
LAST = "report.last_evaluations: must be at most 2"


@pytest.mark.parametrize(
    ("sections", "select", "words"),
    [
        (ELSEWHERE, {"tables": ["t"]}, ["tables.t.scenarios", "'digits/iid'", "'digits/plain'"]),
        ({}, {"scenarios": ["digits/plane"]}, ["select.scenarios", "'plane'", "'plain'"]),
        ({}, {"scenarios": ["digits"]}, ["'digits'", "<dataset>/<partition>"]),
        (
            _protocol(clients_per_round=21),
            P,
            ["p.protocol.clients_per_round: must be at most 20", "got 21"],
        ),
        (_protocol(evaluate_every=9), P, [f"partitions.p.protocol.{LAST}"]),
        ({"study": WORST}, PLAIN, ["study.report.worst_of_evaluations: must be at most 6"]),
        (SHORT, PLAIN | {"methods": ["short"]}, ["methods.short", f"study.{LAST}"]),
        (_protocol(round=3), {}, ["partitions.p.protocol.round", "'rounds'"]),
        ({"study": {"paper": "pep"}}, {}, ["study.paper", "'pep'", "did you mean"]),
    ],
)
def test_what_cannot_be_is_one_line(sections, select, words):
    with refused(*words):
        _plan(select, **sections)


# ---- what tables say ----------------------------------------------------------------------------


def _evaluation(rows):
    """Return an evaluation with rows (round, client, correct of 100); client 9 is held out."""
    frame = pd.DataFrame(rows, columns=["round", "client_id", "num_correct"])
    return frame.assign(num_test=100, participating=frame["client_id"] != 9)


def test_the_worst_may_be_the_lowest_mean_of_the_last_evaluations():
    frame = _evaluation(
        [
            *((1, 0, 0), (1, 1, 0), (1, 9, 0)),
            *((2, 0, 30), (2, 1, 50), (2, 9, 5)),
            *((3, 0, 10), (3, 1, 90), (3, 9, 7)),
            *((4, 0, 20), (4, 1, 80), (4, 9, 9)),
        ]
    )
    assert accuracies(frame, ReportedRounds((4,), worst_of=(2, 3, 4))) == {
        "participating_mean": 50,
        "participating_worst": 40,  # the mean in round 2; the worst client has 10 in round 3
        "held_out_mean": 9,
        "held_out_worst": 5,
    }
    assert accuracies(frame, ReportedRounds((4,)))["participating_worst"] == 20


def test_pooled_counts_images_and_not_clients():
    frame = _evaluation([(1, 0, 100), (2, 0, 50), (2, 1, 20), (2, 9, 0)])
    frame.loc[2, "num_test"] = 300
    assert pooled(frame, ReportedRounds((2,))) == pytest.approx(100 * 70 / 400)
    assert accuracies(frame, ReportedRounds((2,)))["participating_mean"] == pytest.approx(
        (50 + 100 * 20 / 300) / 2
    )
    in_both = (100 + 100 * 70 / 400) / 2
    assert pooled(frame, ReportedRounds((1, 2))) == pytest.approx(in_both), "the mean of the rounds"


def test_pooled_is_the_mean_over_the_reported_rounds():
    frame = _evaluation([(1, 0, 100), (2, 0, 50), (3, 0, 20), (3, 1, 40)])
    assert pooled(frame, ReportedRounds((2, 3))) == pytest.approx((50 + 30) / 2)


def test_a_sentence_says_whose_rounds_differ():
    short = ReportedRounds((8, 10))
    long = ReportedRounds((40,), worst_of=(20, 30, 40))
    runs = [shown(partition="p", reported=short), shown(partition="q", reported=short)]
    assert describe_rounds(runs) == "the mean of rounds 8, 10"
    runs[1] = shown(partition="q", reported=long)
    worst = "round 40 (worst: the lowest mean over clients of 3 evaluations, rounds 20 to 40)"
    assert describe_rounds(runs) == f"p: the mean of rounds 8, 10; q: {worst}"
    runs[1] = shown(partition="p", method="n", title="N", reported=ReportedRounds((12,)))
    assert describe_rounds(runs) == "M on p: the mean of rounds 8, 10; N on p: round 12"
