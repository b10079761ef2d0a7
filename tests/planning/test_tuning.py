"""Trials of a tuned study: which combinations of options, and in which plan."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.common.errors import FedLoomError
from fedloom.config.method_labels import trial_combinations
from fedloom.config.reading import merge_configs, read
from fedloom.machine.install import ROOT
from fedloom.planning import paths
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from tuning_cases import DEFAULT, RATES, labels_of, make_letters, settings_of


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Return a folder with the dataset, the partitions and the features of `settings_of`."""
    return make_letters(tmp_path_factory)


@given(
    st.integers(1, 5).flatmap(
        lambda common: st.tuples(st.just(common), st.integers(1, 4), st.integers(common, 20))
    )
)
def test_no_combination_comes_twice_and_every_value_about_as_often(sizes):
    common, own, trials = sizes
    trials = min(trials, common * own)
    tried = trial_combinations({"a": list(range(common))}, {"b": list(range(own))}, trials, "m")
    pairs = [(each["a"], each["b"]) for each in tried]
    assert len(pairs) == len(set(pairs)) == trials
    for values, count in (([a for a, _ in pairs], common), ([b for _, b in pairs], own)):
        assert np.ptp(np.bincount(values, minlength=count)) <= 1


def test_every_method_makes_the_same_number_of_trials():
    own = {"fedvpt": {"prompts": [2, 4]}}
    tried = settings_of({"per_method": own}, ["head_tuning", "fedvpt"]).trials
    assert {label: len(trials) for label, trials in tried.items()} == {
        "head_tuning": 2,
        "fedvpt": 2,
    }
    assert [trial.options for trial in tried["fedvpt"]] == [
        {"training.lr": 0.1, "prompts": 2},
        {"training.lr": 0.3, "prompts": 4},
    ]


def test_a_trial_has_its_own_options_partition_and_seed():
    plan = Plan(settings_of({"per_method": {"fedvpt": {"prompts": [2, 4]}}, "validation": 0.25}))
    trial = labels_of("fedvpt.0.3-4", 1000, partition="two.validation", end="0002")
    job = plan.job("train", trial)
    assert job.spec.method.options["prompts"] == 4 and job.spec.method.training["lr"] == 0.3
    assert job.last == 2 and not job.global_test and not job.spec.tuned
    assert plan.job("partition", trial).partition.settings["validation"] == 0.25
    final = plan.job("train", labels_of("fedvpt", 0, end="0003"))
    assert final.last == 3 and final.spec.tuned
    assert "validation" not in plan.job("partition", labels_of("fedvpt")).partition.settings
    assert plan.choice_file(labels_of("fedvpt")) == [
        str(paths.path_for(paths.CHOICE, **vars(labels_of("fedvpt"))))
    ]
    assert plan.choice_file(trial) == []


@pytest.mark.parametrize(
    "tune, says",
    [
        ({"trials": 1}, r"study.tune.trials: must be from 2 \("),
        ({"trials": 3}, r"to 2 \(those of methods.head_tuning"),
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
        settings_of(tune)


def test_a_cosine_among_the_values_knows_its_last_round():
    values = {"training.schedule": ["constant", "cosine"]}
    plan = Plan(settings_of({"values": values}, ["fedvpt"]))
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
    plan = Plan(settings_of({"values": values}, ["fedvpt"]))
    asked = plan.resources("train", labels_of("fedvpt", end="0003")).mem_mb
    large = labels_of("fedvpt.512", 1000, partition="two.validation", end="0002")
    assert asked == plan.resources("train", large).mem_mb


@pytest.mark.parametrize("tune", [None, {"trials": 2, "values": RATES}])
def test_a_study_of_another_name_tunes_nothing_unless_it_says_so(tune, tmp_path):
    file = ROOT / "config.yaml"
    default = (file, read(file))
    own = read(file)["study"]["tune"]
    mine = {"study": {"name": "mine"} | ({"tune": tune} if tune else {})}
    merged = merge_configs([default, (tmp_path / "mine.yaml", mine)])
    assert merged["study"].get("tune") == tune
    assert merge_configs([default], {"study": {"name": "x"}})["study"].get("tune") is None
    protocol = (tmp_path / "protocol.yaml", {"study": {"tune": {"trials": 3, "values": RATES}}})
    included = merge_configs([default, protocol, (tmp_path / "mine.yaml", mine)])
    assert included["study"]["tune"] == protocol[1]["study"]["tune"] | (tune or {})
    assert merge_configs([default], {"study": {"rounds": 3}})["study"]["tune"] == own
    assert merge_configs([(file, {"study": 5}), (file, mine)])["study"] == mine["study"]
    off = merge_configs([default], {"study": {"tune": None}})
    assert resolve(off).trials == {}


def test_grids_and_trials_exclude_each_other():
    config = deepcopy(DEFAULT)
    config["methods"]["rates"] = {"plugin": "fedvpt", "grid": {"training.lr": [0.1, 0.3]}}
    config["study"]["tune"] = {"trials": 2, "values": RATES}
    config["select"] |= {"methods": ["rates"], "tables": ["main"], "figures": []}
    with pytest.raises(FedLoomError, match="rates: a grid gives its members"):
        resolve(config)
