"""benchmarks/clip_loops.py times loops that train what FedLoom trains, and no others."""

import importlib
from dataclasses import replace

import pytest
import torch

from fedloom.common.checkout import ROOT

RECEIVED = torch.zeros(2, 3)
OURS = (1.5, torch.ones(2, 3))


@pytest.fixture
def script(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("clip_loops")


@pytest.mark.parametrize("name", ["promptfl", "fedotp", "fedpha"])
def test_all_arms_train_the_same(script, tiny, name):
    """Two clients of unequal size, which do two steps and one."""
    task, hooks = tiny(name)
    task.data.participating, task.training.epochs = [1, 2], 1
    for client, images in ((1, 7), (2, 3)):
        task.data.train[client] = task.data.train[client][:images]
    task = replace(task, clients_per_round=2).at(1)
    received, arms = script.arms_of(task, hooks)
    rounds = {arm: train() for arm, train in arms.items()}
    assert [*rounds] == ["usual", "careful", "ours"]
    loss, context = script.check_alike(name, received, rounds)
    assert loss < 1e-5 and context < 1e-4
    assert (rounds["ours"][1] - received).norm() > 1e-3 * received.norm(), "nothing was trained"


@pytest.mark.parametrize("arm", ["usual", "careful"])
@pytest.mark.parametrize(
    "other",
    [
        (1.502, OURS[1]),
        (1.5, 1.02 * OURS[1]),
        (float("nan"), OURS[1]),
        (1.5, float("nan") * OURS[1]),
    ],
)
def test_a_loop_that_trained_something_else_ends_the_script(script, arm, other):
    rounds = {"usual": OURS, "careful": OURS, "ours": OURS} | {arm: other}
    with pytest.raises(SystemExit, match=f"fedotp: the {arm} loop differs"):
        script.check_alike("fedotp", RECEIVED, rounds)


def test_differences_are_the_largest_of_the_loops(script):
    rounds = {"usual": (1.5001, OURS[1]), "careful": (1.5, 1.001 * OURS[1]), "ours": OURS}
    apart = script.check_alike("fedotp", RECEIVED, rounds)
    assert apart == pytest.approx((1e-4, 1e-3), rel=1e-3)
