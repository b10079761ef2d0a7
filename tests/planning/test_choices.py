"""Which trial of a tuned method is chosen, and what tables and logs say about the choice."""

import shutil
from copy import deepcopy
from types import SimpleNamespace as Wildcards

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch

from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table, write_table
from fedloom.config.settings import VALIDATION
from fedloom.jobs import (
    choose_job,
    evaluate_job,
    table_job,
    train_job,
)
from fedloom.machine.install import ROOT
from fedloom.planning import choices, paths
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.planning.runs import scenarios
from fedloom.report.plotted_runs import plotted_runs
from fedloom.report.tables import notes
from shown_runs import filled
from tuning_cases import labels_of, make_letters, settings_of, tune_study


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Return a folder with the dataset, the partitions and the features of `settings_of`."""
    return make_letters(tmp_path_factory)


@pytest.fixture
def work(letters, tmp_path, monkeypatch):
    """Return a copy of the folder `letters`, which is made the working directory."""
    shutil.copytree(letters, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def evaluated(trial, job, rows):
    run = Run(job.dataset, job.partition + VALIDATION, job.backbone, trial.label, job.seed)
    columns = ("round", "client_id", "participating", "personalized", "num_test", "num_correct")
    frame = filled([dict(zip(columns, row, strict=True)) for row in rows], "evaluation")
    write_table(paths.path_for(paths.EVALUATION, run), pa.Table.from_pandas(frame))


def test_the_trial_with_the_best_mean_of_participating_clients_is_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = Plan(settings_of({"trials": 3, "values": {"training.lr": [0.1, 0.3, 0.9]}}))
    job = plan.job("choose", labels_of("fedvpt"))
    first, second, third = job.trials
    earlier = (1, 0, True, False, 10, 10)
    held_out = (2, 2, False, False, 10)

    def rows_of(large, small, other):
        return [
            earlier,
            (2, 0, True, False, 10, large),
            (2, 1, True, False, 2, small),
            (*held_out, other),
        ]

    evaluated(first, job, rows_of(8, 1, 10))  # clients have 80 and 50 %, 65 on average
    evaluated(second, job, rows_of(6, 2, 0))  # clients have 60 and 100 %, 80 on average
    evaluated(third, job, rows_of(6, 2, 9))  # the same accuracies as the second trial
    choose_job.run_job(job, 1)
    file = paths.path_for(paths.CHOICE, **vars(labels_of("fedvpt")))
    rows = read_table(file.with_name("trials.parquet")).to_pylist()
    assert [row["accuracy"] for row in rows] == pytest.approx([65, 80, 80])
    before = file.read_bytes()
    assert choices.chosen_options(file) == {"training.lr": 0.3}
    evaluated(third, job, rows_of(5, 2, 9))
    choose_job.run_job(job, 1)
    assert file.read_bytes() == before, "a loser's number trains no run anew"


def test_a_trial_that_diverges_ranks_last(work):
    wild = {"training.lr": [1e38, 0.1]}
    # each job trains one round, so that a job also starts from a trial that has diverged
    plan = Plan(settings_of({"values": wild, "rounds": 3}, ["fedvpt"], rounds_per_job=1))
    for trial in plan.settings.trials["fedvpt"]:
        labels = labels_of(trial.label, 1000, partition="two.validation")
        for end in ("0001", "0002", "0003"):
            train_job.run_job(plan.job("train", labels_of(**vars(labels) | {"end": end})), 1)
        evaluate_job.run_job(plan.job("evaluate", labels), 1)
    job = plan.job("choose", labels_of("fedvpt"))
    choose_job.run_job(job, 1)
    file = paths.path_for(paths.CHOICE, **vars(labels_of("fedvpt")))
    rows = read_table(file.with_name("trials.parquet")).to_pylist()
    assert rows[0]["accuracy"] is None and rows[1]["accuracy"] > 0
    assert choices.chosen_options(file) == {"training.lr": 0.1}

    for trial in job.trials:
        evaluated(trial, job, [(1, 0, True, False, 10, 10)])  # no row after the last round
    with pytest.raises(FedLoomError, match="fedvpt: all of its 2 trials diverged"):
        choose_job.run_job(job, 1)


def test_a_loss_not_below_guessing_is_one_line_of_the_log_and_a_trial_is_none(work, caplog):
    plan = Plan(settings_of({"values": {"training.lr": [1e-9]}, "trials": 1}, ["fedvpt"]))
    trial = labels_of("fedvpt.1e-09", 1000, partition="two.validation", end="0002")
    for labels in (trial, labels_of("fedvpt", 0, end="0003")):
        train_job.run_job(plan.job("train", labels), 1)
        with caplog.at_level("INFO"):
            evaluate_job.run_job(plan.job("evaluate", labels), 1)
        if labels is trial:
            choose_job.run_job(plan.job("choose", labels_of("fedvpt")), 1)
    (line,) = [line for line in caplog.messages if "guessing" in line]
    assert line.startswith("letters/two/micro_vit/fedvpt/seed0: training loss 1.39 after")
    rows = read_table(paths.path_for(paths.ROUNDS, Run(**vars(labels_of("fedvpt"))))).to_pylist()
    assert {row["guessing_loss"] for row in rows} == {np.log(4)}


def test_the_log_does_not_speak_of_the_loss_of_a_method_that_trains_nothing():
    plan = load_plan([ROOT / "workflow/studies/micro/micro_clip.yaml"])
    scenario, *_ = scenarios(plan.settings)
    checks = {}
    for method in ("zero_shot_clip", "promptfl"):
        labels = Wildcards(**vars(scenario), backbone="micro_clip", method=method, seed=0)
        checks[method] = plan.job("evaluate", labels).checks_loss
    assert checks == {"zero_shot_clip": False, "promptfl": True}


def test_a_tuned_run_is_the_run_with_the_chosen_options(work, monkeypatch):
    plan, _, _ = tune_study(work, "head_tuning", monkeypatch)
    job = plan.job("train", labels_of("head_tuning", end="0003"))
    chosen = choices.with_choice(job.spec)
    lr = choices.chosen_options(paths.path_for(paths.CHOICE, **vars(labels_of("head_tuning"))))[
        "training.lr"
    ]
    assert chosen.method.training == job.spec.method.training | {"lr": lr}
    state = paths.path_for(paths.STATE, chosen.run, end="0003")
    train_job.run_job(job, 1)
    tuned = safetensors.torch.load_file(state)
    monkeypatch.setattr(choices, "with_choice", lambda spec: spec)
    for rate in (0.1, 0.3):
        shutil.rmtree(state.parent)
        spec = deepcopy(job.spec)
        spec.method.training["lr"] = rate
        train_job.run_job(type(job)(**vars(job) | {"spec": spec}), 1)
        plain = safetensors.torch.load_file(state)
        assert all(torch.equal(plain[k], tuned[k]) for k in tuned) == (rate == lr)


def test_the_footnote_says_the_budget_and_what_was_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = Plan(settings_of({"per_method": {"fedvpt": {"prompts": [2, 4]}}}))
    for method in ("head_tuning", "fedvpt"):
        job = plan.job("choose", labels_of(method))
        for number, trial in enumerate(job.trials):
            evaluated(trial, job, [(2, 0, True, False, 10, number)])
        choose_job.run_job(job, 1)
    job = plan.job("table", Wildcards(label="main"))
    assert " ".join(notes.tuning(plotted_runs(job.shown), job.tuned)) == (
        "Options chosen from 2 trials of every method, each of 2 rounds and with seed 1000, by the "
        "accuracy of participating clients on a held-back share of 0.2 of their training images. "
        "Chosen: Head-Tuning: lr 0.3; FedVPT: lr 0.3, prompts 4."
    )
    trials = str(paths.path_for(paths.TRIALS, **vars(labels_of("fedvpt"))))
    assert trials in plan.shown_files("table", Wildcards(label="main"))


@pytest.mark.parametrize(
    ("chosen", "tried", "edges"),
    [
        (0.03, [0.03, 0.1, 0.3], {"x": "lowest"}),
        (0.3, [0.03, 0.3, 0.1], {"x": "highest"}),
        (0.1, [0.03, 0.1, 0.3], {}),
        (0.1, [0.1, 0.1], {}),  # no other value was tried
        (1, [None, 1, 2], {"x": "lowest"}),
        (None, [None, 1, 2], {}),
        (True, [True, False], {}),
        ("a", ["a", "b"], {}),
    ],
)
def test_a_chosen_number_may_be_the_lowest_or_highest_tried(chosen, tried, edges):
    assert choices.at_edge({"x": chosen}, [{"x": value} for value in tried]) == edges


def test_a_value_at_the_edge_is_named_in_the_log_and_marked_in_the_table(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    values = {"training.lr": [0.1, 0.3, 0.9]}
    plan = Plan(settings_of({"trials": 3, "values": values}, seeds=[0]))
    for method, best in (("head_tuning", 1), ("fedvpt", 0)):
        job = plan.job("choose", labels_of(method))
        for number, trial in enumerate(job.trials):
            evaluated(trial, job, [(2, 0, True, False, 10, 5 + (number == best))])
        with caplog.at_level("INFO"):
            choose_job.run_job(job, 1)
    (line,) = [line for line in caplog.messages if "that was tried" in line]
    assert line.startswith("letters/two/micro_vit/fedvpt: chose training.lr 0.1, the lowest")
    job = plan.job("table", Wildcards(label="main"))
    for run in plotted_runs(job.shown):
        losses = {"round": [3], "train_loss": [1.0], "guessing_loss": [1.4]}
        write_table(run.rounds, pa.Table.from_pandas(filled(losses, "rounds")))
        row = {"round": 3, "client_id": 0, "participating": True, "personalized": False}
        frame = filled([row | {"num_test": 2, "num_correct": 1}], "evaluation")
        write_table(run.evaluation, pa.Table.from_pandas(frame))
    table_job.run_job(job, 1)
    text = paths.path_for(paths.TABLE, study=job.study, label="main").read_text()
    assert "| FedVPT § " in text and "| Head-Tuning |" in text
    assert "\n§ a chosen value is the lowest or highest that was tried" in text
