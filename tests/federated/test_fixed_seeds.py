"""Seeds of partition, sampling and initialisation apart (study.fixed_seeds)."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from default_config import default_config
from fedloom.common.trees import leaves
from fedloom.config.settings import ResolvedSeeds
from fedloom.contract.tiny import tiny_task
from fedloom.federated.round import initial_state, select_for_round
from fedloom.federated.state import State
from fedloom.hooks import loader, manifest
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan


def _plan(**fixed):
    config = deepcopy(default_config())
    config["study"] |= {"fixed_seeds": fixed}
    config["partitions"]["seeded"] = config["partitions"]["iid"] | {"seed": 7}
    return Plan(resolve(config))


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return tiny_task(manifest.find_method("fedvpt"), tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def hooks():
    return loader.load_hooks(manifest.find_method("fedvpt"))


def _selected(task, hooks):
    return [select_for_round(task.at(number), hooks, State({})) for number in range(1, 9)]


def _equal(first, second):
    pairs = list(zip(leaves(first.server), leaves(second.server), strict=True))
    return len(pairs) > 1 and all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def _drawn(task, number=1):
    return torch.rand(3, generator=task.at(number).generator("noise")).tolist()


def test_a_fixed_partition_is_that_of_partitions_without_a_seed_of_their_own():
    partitions = _plan(partition=3).settings.partitions
    assert partitions["iid"].settings["seed"] == 3
    assert partitions["seeded"].settings["seed"] == 7


def test_what_is_fixed_is_part_of_the_run_and_of_its_warm_start():
    plan = _plan(sampling=0, initialisation=5)
    run = plan.runs[0]
    assert plan.run_spec(run).fixed_seeds == ResolvedSeeds(sampling=0, initialisation=5)
    assert plan.job("prototypes", run).sampling == 0
    assert _plan().job("prototypes", run).sampling is None


def test_fixed_sampling_selects_the_same_clients_under_every_seed(task, hooks):
    own = replace(task, seed=1)
    other = replace(task, seed=2)
    assert _selected(own, hooks) != _selected(other, hooks)
    fixed = [replace(each, fixed_seeds=ResolvedSeeds(sampling=1)) for each in (own, other)]
    assert _selected(fixed[0], hooks) == _selected(fixed[1], hooks) == _selected(own, hooks)
    first, second = (initial_state(each, hooks) for each in fixed)
    assert not _equal(first, second), "initialisations differ still"


def test_fixed_initialisation_makes_only_the_start_of_all_seeds_equal(task, hooks):
    fixed = [replace(task, seed=k, fixed_seeds=ResolvedSeeds(initialisation=4)) for k in (1, 2)]
    first, second = (initial_state(each, hooks) for each in fixed)
    assert _equal(first, second)
    assert _drawn(fixed[0], 0) == _drawn(fixed[1], 0) == _drawn(replace(task, seed=4), 0)
    assert _drawn(fixed[0]) != _drawn(fixed[1])
    assert _selected(fixed[0], hooks) != _selected(fixed[1], hooks)
