"""study.tune: every method tries as much, on images held back, and trains with the best."""

import os
import shutil
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace as Wildcards

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table, write_table
from fedloom.config.method_labels import combinations
from fedloom.config.reading import merge, read
from fedloom.config.settings import VALIDATION
from fedloom.data.partition import validation_split
from fedloom.data.store import ImageStore
from fedloom.jobs import (
    cache_job,
    choose_job,
    dataset_job,
    evaluate_job,
    partition_job,
    prototypes_job,
    table_job,
    train_job,
)
from fedloom.machine.install import ROOT
from fedloom.planning import choices, paths
from fedloom.planning.load_plan import resolve
from fedloom.planning.output_runs import plotted_runs
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.report.tables import notes
from partitioned import make
from shown_runs import filled

DEFAULT = default_config()
RATES = {"training.lr": [0.1, 0.3]}


def _settings(tune, methods=("head_tuning", "fedvpt"), **study):
    config = deepcopy(DEFAULT)
    config["study"] |= {"seeds": [0, 1], "rounds": 3, "report": {"last_evaluations": 1}} | study
    config["study"]["tune"] = {"trials": 2, "values": RATES, "rounds": 2} | tune
    config["datasets"]["letters"] = {"source": "glyphs", "classes": 4, "draws": 1}
    config["partitions"]["two"] = {"scheme": "iid", "clients": 2}
    config["study"]["clients_per_round"] = 2
    config["select"] |= {
        "datasets": ["letters"],
        "partitions": ["two"],
        "methods": list(methods),
        "tables": ["main"],
        "figures": [],
    }
    return resolve(config)


def _of(method, seed=0, **more):
    labels = {"dataset": "letters", "partition": "two", "backbone": "micro_vit"}
    return Wildcards(**labels | {"method": method, "seed": seed} | more)


# ---- combinations -------------------------------------------------------------------------------


@given(
    st.integers(1, 5).flatmap(
        lambda common: st.tuples(st.just(common), st.integers(1, 4), st.integers(common, 20))
    )
)
def test_no_combination_comes_twice_and_every_value_about_as_often(sizes):
    common, own, trials = sizes
    trials = min(trials, common * own)
    tried = combinations({"a": list(range(common))}, {"b": list(range(own))}, trials, "m")
    pairs = [(each["a"], each["b"]) for each in tried]
    assert len(pairs) == len(set(pairs)) == trials
    for values, count in (([a for a, _ in pairs], common), ([b for _, b in pairs], own)):
        assert np.ptp(np.bincount(values, minlength=count)) <= 1


def test_every_method_makes_the_same_number_of_trials_and_what_is_not_trained_makes_none():
    own = {"fedvpt": {"prompts": [2, 4]}}
    tried = _settings({"per_method": own}, ["head_tuning", "fedvpt"]).trials
    assert {label: len(trials) for label, trials in tried.items()} == {
        "head_tuning": 2,
        "fedvpt": 2,
    }
    assert [trial.options for trial in tried["fedvpt"]] == [
        {"training.lr": 0.1, "prompts": 2},
        {"training.lr": 0.3, "prompts": 4},
    ]


def test_a_trial_is_the_method_with_its_options_on_a_partition_and_a_seed_of_its_own():
    plan = Plan(_settings({"per_method": {"fedvpt": {"prompts": [2, 4]}}, "validation": 0.25}))
    trial = _of("fedvpt.0.3-4", 1000, partition="two.validation", end="0002")
    job = plan.job("train", trial)
    assert job.spec.method.options["prompts"] == 4 and job.spec.method.training["lr"] == 0.3
    assert job.last == 2 and not job.global_test and not job.spec.tuned
    assert plan.job("partition", trial).partition.settings["validation"] == 0.25
    final = plan.job("train", _of("fedvpt", 0, end="0003"))
    assert final.last == 3 and final.spec.tuned
    assert "validation" not in plan.job("partition", _of("fedvpt")).partition.settings
    assert plan.choice(_of("fedvpt")) == [str(paths.path_for(paths.CHOICE, **vars(_of("fedvpt"))))]
    assert plan.choice(trial) == []


@pytest.mark.parametrize(
    "tune, says",
    [
        ({"trials": 1}, "study.tune.trials: must be at least 2, "),
        ({"trials": 3}, "at most 2, those of methods.head_tuning"),
        ({"seed": 1}, "study.tune.seed: 1 is one of study.seeds"),
        ({"values": {"training.rate": [1]}, "trials": 1}, "no option 'training.rate'"),
        ({"values": {"training.lr": [-1]}, "trials": 1}, r"training\.lr: must be"),
        (
            {"per_method": {"fedvtp": {"prompts": [1]}}},
            "study.tune.per_method: the study runs no 'fedvtp'",
        ),
        ({"per_method": {"fedvpt": {"prompt": [1, 2]}}}, "no option 'prompt'"),
        (
            {"per_method": {"fedvpt": {"training.lr": [1]}}},
            "'training.lr' is one of study.tune.values",
        ),
        ({"rounds": 0}, "study.tune.rounds"),
    ],
)
def test_what_cannot_be_tried_is_one_line(tune, says):
    with pytest.raises(FedLoomError, match=says):
        _settings(tune)


def test_a_cosine_among_the_values_knows_its_last_round():
    values = {"training.schedule": ["constant", "cosine"]}
    plan = Plan(_settings({"values": values}, ["fedvpt"]))
    run = Run("letters", "two", "micro_vit", "fedvpt", 0)
    assert plan.run_spec(run).schedule_rounds == 3


def test_a_wrapper_that_a_trials_options_exclude_is_refused():
    config = deepcopy(DEFAULT)
    config["methods"]["m"] = {"plugin": "fedavg_pt", "wrappers": [{"plugin": "secure_mask"}]}
    own = {"m": {"selection": [False, True]}}
    config["study"]["tune"] = {"trials": 2, "values": {"training.lr": [0.1]}, "per_method": own}
    config["select"] |= {"methods": ["m"], "tables": ["main"], "figures": []}
    with pytest.raises(FedLoomError, match="secure_mask"):
        resolve(config)


def test_a_tuned_run_asks_for_what_its_largest_trial_does():
    values = {"training.batch_size": [16, 512]}
    plan = Plan(_settings({"values": values}, ["fedvpt"]))
    asked = plan.resources("train", _of("fedvpt", end="0003")).mem_mb
    large = _of("fedvpt.512", 1000, partition="two.validation", end="0002")
    assert asked == plan.resources("train", large).mem_mb


@pytest.mark.parametrize("tune", [None, {"trials": 2, "values": RATES}])
def test_a_study_of_another_name_tunes_nothing_unless_it_says_so(tune, tmp_path):
    file = ROOT / "config.yaml"
    default, own = (file, read(file)), read(file)["study"]["tune"]
    mine = {"study": {"name": "mine"} | ({"tune": tune} if tune else {})}
    merged = merge([default, (tmp_path / "mine.yaml", mine)])
    assert merged["study"].get("tune") == tune
    assert merge([default], {"study": {"name": "x"}})["study"].get("tune") is None
    protocol = (tmp_path / "protocol.yaml", {"study": {"tune": {"trials": 3, "values": RATES}}})
    included = merge([default, protocol, (tmp_path / "mine.yaml", mine)])
    assert included["study"]["tune"] == protocol[1]["study"]["tune"] | (tune or {})
    assert merge([default], {"study": {"rounds": 3}})["study"]["tune"] == own
    assert merge([(file, {"study": 5}), (file, mine)])["study"] == mine["study"]
    off = merge([default], {"study": {"tune": None}})
    assert resolve(off).trials == {}


def test_grids_and_trials_exclude_each_other():
    config = deepcopy(DEFAULT)
    config["methods"]["rates"] = {"plugin": "fedvpt", "grid": {"training.lr": [0.1, 0.3]}}
    config["study"]["tune"] = {"trials": 2, "values": RATES}
    config["select"] |= {"methods": ["rates"], "tables": ["main"], "figures": []}
    with pytest.raises(FedLoomError, match="rates: a grid gives its members"):
        resolve(config)


# ---- on which images ----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=120),
    st.floats(0.05, 0.9),
    st.integers(0, 3),
)
def test_a_share_of_every_client_is_held_back_and_every_class_keeps_an_image(pairs, share, seed):
    owner, labels = np.array(pairs).T
    counts = np.zeros((4, 6), int)
    np.add.at(counts, (owner, labels), 1)
    present = counts[counts.sum(1) > 0]
    if (present.max(1) < 2).any():
        with pytest.raises(FedLoomError, match="no two images of one class"):
            validation_split(labels, owner, share, seed)
        return
    held = validation_split(labels, owner, share, seed)
    taken = np.zeros_like(counts)
    np.add.at(taken, (owner[held], labels[held]), 1)
    assert (taken <= np.maximum(counts - 1, 0)).all()
    for k in np.flatnonzero(counts.sum(1)):
        assert taken[k].sum() >= 1
        wanted = np.minimum(np.abs(share * counts[k]), np.maximum(counts[k] - 1, 0))
        assert (np.abs(taken[k] - wanted) <= 1).all() or taken[k].sum() == 1


def test_trials_see_no_test_image_and_the_clients_are_the_same():
    spec = {"scheme": "dirichlet", "kind": "client", "clients": 6, "alpha": 1.0, "held_out": 0.2}
    whole, part = make(spec), make(spec | {"validation": 0.2})
    was_test, client = whole["test"].to_numpy(), part["client_id"].to_numpy()
    assert (client[was_test] == -1).all() and not part["test"].to_numpy()[was_test].any()
    assert not part["participating"].to_numpy()[was_test].any()
    training = ~was_test
    for column in ("client_id", "participating"):
        assert (
            part[column].to_numpy()[training].tolist()
            == whole[column].to_numpy()[training].tolist()
        )
    share = part["test"].to_numpy()[training].mean()
    assert 0.15 < share < 0.2 + 0.02


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """The dataset, the partitions and the features of `_settings`."""
    folder, here = tmp_path_factory.mktemp("letters"), Path.cwd()
    os.chdir(folder)
    plan = Plan(_settings({}))
    dataset_job.run(plan.job("dataset", _of("fedvpt")), 1)
    cache_job.run(plan.job("cache", _of("fedvpt", cache="features")), 1)
    partition_job.run(plan.job("partition", _of("fedvpt", 0)), 1)
    partition_job.run(plan.job("partition", _of("fedvpt", 1000, partition="two.validation")), 1)
    os.chdir(here)
    return folder


@pytest.fixture
def work(letters, tmp_path, monkeypatch):
    """A copy of `letters`, in which the test works."""
    shutil.copytree(letters, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def _tune(folder, method, monkeypatch):
    """Train a method's trials in the folder, choose, and return states and choice as bytes."""
    monkeypatch.chdir(folder)
    plan = Plan(_settings({}, [method]))
    states = []
    if "prototypes" in plan.settings.methods[method].needs:
        of_trials = _of(method, 1000, partition="two.validation")
        prototypes_job.run(plan.job("prototypes", of_trials), 1)
    for trial in plan.settings.trials[method]:
        labels = _of(trial.label, 1000, partition="two.validation", end="0002")
        train_job.run(plan.job("train", labels), 1)
        evaluate_job.run(plan.job("evaluate", labels), 1)
        run = plan.job("evaluate", labels).run
        states.append(paths.path_for(paths.STATE, run, end="0002").read_bytes())
    choose_job.run(plan.job("choose", _of(method)), 1)
    return plan, states, paths.path_for(paths.CHOICE, **vars(_of(method))).read_bytes()


@pytest.mark.parametrize("method", ["head_tuning", "pep_fedpt"])
def test_no_test_image_bears_on_a_choice(method, letters, tmp_path, monkeypatch):
    """Trials and choice have the same bytes where all test images are replaced by noise.

    One method reads cached features, the other pixels and prototypes.
    """
    for name in ("as_it_is", "replaced"):
        shutil.copytree(letters, tmp_path / name)
    plan, states, choice = _tune(tmp_path / "as_it_is", method, monkeypatch)
    features = paths.path_for(paths.CACHE, **vars(_of(method, cache="features")))
    before = features.read_bytes()

    images, noise = ImageStore.images, np.random.default_rng(0)

    def with_noise(store, rows):
        pixels = np.array(images(store, rows))
        pixels[store.test[rows]] = noise.integers(0, 256, pixels[store.test[rows]].shape)
        return pixels

    monkeypatch.setattr(ImageStore, "images", with_noise)
    monkeypatch.chdir(tmp_path / "replaced")
    cache_job.run(plan.job("cache", _of(method, cache="features")), 1)
    assert features.read_bytes() != before, "test images are in the cache"
    assert _tune(tmp_path / "replaced", method, monkeypatch)[1:] == (states, choice)


# ---- what is chosen -----------------------------------------------------------------------------


def _evaluated(trial, job, rows):
    run = Run(job.dataset, job.partition + VALIDATION, job.backbone, trial.label, job.seed)
    columns = ("round", "client_id", "participating", "personalized", "num_test", "num_correct")
    frame = filled([dict(zip(columns, row, strict=True)) for row in rows], "evaluation")
    write_table(paths.path_for(paths.EVALUATION, run), pa.Table.from_pandas(frame))


def test_the_best_mean_of_participating_clients_at_the_reported_rounds_is_chosen(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    plan = Plan(_settings({"trials": 3, "values": {"training.lr": [0.1, 0.3, 0.9]}}))
    job = plan.job("choose", _of("fedvpt"))
    first, second, third = job.trials
    earlier, held_out = (1, 0, True, False, 10, 10), (2, 2, False, False, 10)

    def rows_of(large, small, other):
        return [
            earlier,
            (2, 0, True, False, 10, large),
            (2, 1, True, False, 2, small),
            (*held_out, other),
        ]

    _evaluated(first, job, rows_of(8, 1, 10))  # 80 and 50 %: 65
    _evaluated(second, job, rows_of(6, 2, 0))  # 60 and 100 %: 80
    _evaluated(third, job, rows_of(6, 2, 9))  # the same again
    choose_job.run(job, 1)
    file = paths.path_for(paths.CHOICE, **vars(_of("fedvpt")))
    rows = read_table(file.with_name("trials.parquet")).to_pylist()
    assert [row["accuracy"] for row in rows] == pytest.approx([65, 80, 80])
    before = file.read_bytes()
    assert choices.chosen_options(file) == {"training.lr": 0.3}
    _evaluated(third, job, rows_of(5, 2, 9))
    choose_job.run(job, 1)
    assert file.read_bytes() == before, "a loser's number trains no run anew"


def test_a_trial_that_diverges_ranks_last(work):
    wild = {"training.lr": [1e38, 0.1]}
    # a round a job, so that a job also starts from a trial that has diverged
    plan = Plan(_settings({"values": wild, "rounds": 3}, ["fedvpt"], rounds_per_job=1))
    for trial in plan.settings.trials["fedvpt"]:
        labels = _of(trial.label, 1000, partition="two.validation")
        for end in ("0001", "0002", "0003"):
            train_job.run(plan.job("train", _of(**vars(labels) | {"end": end})), 1)
        evaluate_job.run(plan.job("evaluate", labels), 1)
    job = plan.job("choose", _of("fedvpt"))
    choose_job.run(job, 1)
    file = paths.path_for(paths.CHOICE, **vars(_of("fedvpt")))
    rows = read_table(file.with_name("trials.parquet")).to_pylist()
    assert rows[0]["accuracy"] is None and rows[1]["accuracy"] > 0
    assert choices.chosen_options(file) == {"training.lr": 0.1}

    for trial in job.trials:
        _evaluated(trial, job, [(1, 0, True, False, 10, 10)])  # none after the last round
    with pytest.raises(FedLoomError, match="fedvpt: all of its 2 trials diverged"):
        choose_job.run(job, 1)


def test_a_loss_not_below_guessing_is_one_line_of_the_log_and_a_trial_is_none(work, caplog):
    plan = Plan(_settings({"values": {"training.lr": [1e-9]}, "trials": 1}, ["fedvpt"]))
    trial = _of("fedvpt.1e-09", 1000, partition="two.validation", end="0002")
    for labels in (trial, _of("fedvpt", 0, end="0003")):
        train_job.run(plan.job("train", labels), 1)
        with caplog.at_level("INFO"):
            evaluate_job.run(plan.job("evaluate", labels), 1)
        if labels is trial:
            choose_job.run(plan.job("choose", _of("fedvpt")), 1)
    (line,) = [line for line in caplog.messages if "guessing" in line]
    assert line.startswith("letters/two/micro_vit/fedvpt/seed0: training loss 1.39 after")
    rows = read_table(paths.path_for(paths.ROUNDS, Run(**vars(_of("fedvpt"))))).to_pylist()
    assert {row["guessing_loss"] for row in rows} == {np.log(4)}


def test_a_tuned_run_is_the_run_with_the_chosen_options(work, monkeypatch):
    plan, _, _ = _tune(work, "head_tuning", monkeypatch)
    job = plan.job("train", _of("head_tuning", end="0003"))
    chosen = choices.with_choice(job.spec)
    lr = choices.chosen_options(paths.path_for(paths.CHOICE, **vars(_of("head_tuning"))))[
        "training.lr"
    ]
    assert chosen.method.training == job.spec.method.training | {"lr": lr}
    state = paths.path_for(paths.STATE, chosen.run, end="0003")
    train_job.run(job, 1)
    tuned = safetensors.torch.load_file(state)
    monkeypatch.setattr(choices, "with_choice", lambda spec: spec)
    for rate in (0.1, 0.3):
        shutil.rmtree(state.parent)
        spec = deepcopy(job.spec)
        spec.method.training["lr"] = rate
        train_job.run(type(job)(**vars(job) | {"spec": spec}), 1)
        plain = safetensors.torch.load_file(state)
        assert all(torch.equal(plain[k], tuned[k]) for k in tuned) == (rate == lr)


def test_the_footnote_says_the_budget_and_what_was_chosen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = Plan(_settings({"per_method": {"fedvpt": {"prompts": [2, 4]}}}))
    for method in ("head_tuning", "fedvpt"):
        job = plan.job("choose", _of(method))
        for number, trial in enumerate(job.trials):
            _evaluated(trial, job, [(2, 0, True, False, 10, number)])
        choose_job.run(job, 1)
    job = plan.job("table", Wildcards(label="main"))
    assert notes.tuning(plotted_runs(job.shown), job.tuned) == (
        "Options chosen from 2 trials of every method, 2 rounds of one seed (1000) each, by the "
        "accuracy of participating clients on 0.2 of their training images. Chosen: Head-Tuning: "
        "lr 0.3; FedVPT: lr 0.3, prompts 4."
    )
    trials = str(paths.path_for(paths.TRIALS, **vars(_of("fedvpt"))))
    assert trials in plan.shown_files("table", Wildcards(label="main"))


@pytest.mark.parametrize(
    ("chosen", "tried", "edges"),
    [
        (0.03, [0.03, 0.1, 0.3], {"x": "lowest"}),
        (0.3, [0.03, 0.3, 0.1], {"x": "highest"}),
        (0.1, [0.03, 0.1, 0.3], {}),
        (0.1, [0.1, 0.1], {}),  # nothing else was tried
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
    plan = Plan(_settings({"trials": 3, "values": values}, seeds=[0]))
    for method, best in (("head_tuning", 1), ("fedvpt", 0)):
        job = plan.job("choose", _of(method))
        for number, trial in enumerate(job.trials):
            _evaluated(trial, job, [(2, 0, True, False, 10, 5 + (number == best))])
        with caplog.at_level("INFO"):
            choose_job.run(job, 1)
    (line,) = [line for line in caplog.messages if "that was tried" in line]
    assert line.startswith("letters/two/micro_vit/fedvpt: chose training.lr 0.1, the lowest")
    job = plan.job("table", Wildcards(label="main"))
    for run in plotted_runs(job.shown):
        losses = {"round": [3], "train_loss": [1.0], "guessing_loss": [1.4]}
        write_table(run.rounds, pa.Table.from_pandas(filled(losses, "rounds")))
        row = {"round": 3, "client_id": 0, "participating": True, "personalized": False}
        frame = filled([row | {"num_test": 2, "num_correct": 1}], "evaluation")
        write_table(run.evaluation, pa.Table.from_pandas(frame))
    table_job.run(job, 1)
    text = paths.path_for(paths.TABLE, study=job.study, label="main").read_text()
    assert "| FedVPT § " in text and "| Head-Tuning |" in text
    assert text.splitlines()[-1].startswith(
        "§ a chosen value is the lowest or highest that was tried"
    )
