"""benchmarks/peers.py compares what its arms trained, before it says how fast they were."""

import importlib
import re
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedloom.common.checkout import ROOT

TRAINED = {"head": torch.full((3, 2), 0.5)}


@pytest.fixture
def peers(monkeypatch):
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("peers")


@pytest.fixture
def compared(peers, tmp_path):
    """compared(params): check a plain loop that ends in `params`, FedLoom's being TRAINED."""
    case = peers.Case("head_tuning", 4)
    world = peers.World(tmp_path, (case,), 2, 10, 0.1, 0.9, 10.0, "")
    world.write({"head_tuning/head": torch.zeros(3, 2)})
    arms = [peers.Arm(peers.OURS, "FedLoom", "ours"), peers.Arm("plain", "plain loop", "plain")]

    def compare(params: dict, ours: dict = TRAINED, number: int = 1) -> float:
        for arm, tensors in zip(arms, (ours, params), strict=True):
            save_file(tensors, peers.result_file(world, arm.name, case, number))
        return peers.check_alike(world, arms, case, number)

    return compare


@pytest.mark.parametrize(("by", "number"), [(5e-6, 1), (0.02, 2)])
def test_arms_that_trained_the_same_are_timed(compared, by, number):
    """In later rounds rounding has grown."""
    near = {"head": TRAINED["head"] + by}
    assert compared(near, number=number) == pytest.approx(by, rel=0.1)


@pytest.mark.parametrize(
    ("params", "number", "line"),
    [
        ({"head": TRAINED["head"] + 2e-5}, 1, "plain, head_tuning_4, round 1: differs by"),
        ({"head": TRAINED["head"] * float("nan")}, 1, "round 1: differs by"),
        ({"head": TRAINED["head"] + 0.03}, 2, "round 2: differs by"),
        (TRAINED | {"more": torch.zeros(1)}, 1, r"\['head', 'more'\], not \['head'\]"),
        ({"head": torch.zeros(3, 2)}, 1, "nothing was trained"),
    ],
)
def test_an_arm_that_trained_something_else_or_nothing_ends_the_script(
    compared, params, number, line
):
    ours = TRAINED if params["head"].any() else params
    with pytest.raises(SystemExit, match=line):
        compared(params, ours, number)


def test_ratios_leave_the_first_round_out_and_are_taken_round_by_round(peers):
    case = peers.Case("fedvpt", 16)
    ours, theirs = (peers.Arm(name, name, name) for name in (peers.OURS, "plain"))
    ours.taken[case] = [{"processor": seconds} for seconds in (9.0, 1.0, 2.0)]
    theirs.taken[case] = [{"processor": seconds} for seconds in (1.0, 3.0, 8.0)]
    assert peers.ratios(theirs, ours, case, "processor") == [3.0, 4.0]


def test_peers_that_are_not_installed_are_named_and_left_out(peers, monkeypatch, capsys):
    monkeypatch.setattr(peers, "PEERS", Path("/nowhere/python"))
    assert [arm.name for arm in peers.arms_at_hand()] == ["fedloom", "one_by_one", "plain"]
    assert capsys.readouterr().out.count("Left out: ") == 2


def test_an_arm_that_is_silent_ends_the_script_with_what_it_printed(peers, monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "PATIENCE", 0.1)
    monkeypatch.setattr(peers, "PEERS", tmp_path / "python")
    (tmp_path / "python").write_text("#!/bin/sh\necho Ray is dead >&2\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    arm = peers.Arm("flower", "Flower", "flower", "flwr")
    with pytest.raises(SystemExit, match=r"(?s)Ray is dead.*flower died, or was silent for 0.1 s"):
        arm.start(tmp_path)
    arm.end()
    assert arm._process.returncode == -signal.SIGKILL


def test_peers_are_pinned_in_an_environment_of_their_own():
    pins = (ROOT / "benchmarks/peers.txt").read_text().split()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    names = {pin.split("==")[0] for pin in pins}
    assert {"flwr", "pfl", "ray"} <= names
    ours = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert not {"flwr", "pfl", "ray"} & ours
