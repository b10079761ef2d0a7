"""benchmarks/peers.py compares what its arms trained, before it says how fast they were."""

import importlib
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from changed_task import with_training
from fedloom.common.files import write_text
from fedloom.common.ids import SERVER_MODEL
from fedloom.config.reading import read
from fedloom.machine.install import ROOT
from fedloom.planning import paths
from fedloom.planning.load_plan import load_plan
from fedloom.planning.study_jobs import jobs_of_study

TRAINED = {"head": torch.full((3, 2), 0.5)}


@pytest.fixture
def peers(monkeypatch):
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("peers")


@pytest.fixture
def compared(peers, tmp_path):
    """Return compare(params), which checks `params` of a plain loop against FedLoom's TRAINED."""
    case = peers.Case("head_tuning", 4)
    world = peers.World(tmp_path, (case,), 2, 10, 0.1, 0.9, 10.0, "micro_vit", 32, "")
    world.write({"head_tuning/head": torch.zeros(3, 2)})
    arms = [peers.Arm(peers.OURS, "FedLoom", "ours"), peers.Arm("plain", "plain loop", "plain")]

    def compare(params: dict, ours: dict = TRAINED, number: int = 1) -> float:
        for arm, tensors in zip(arms, (ours, params), strict=True):
            save_file(tensors, peers.result_file(world, arm.name, case, number))
        return peers.check_alike(world, arms, case, number)

    return compare


@pytest.mark.parametrize(("by", "number"), [(5e-6, 1), (0.02, 2)])
def test_arms_that_trained_the_same_are_timed(compared, by, number):
    """Rounding has grown in later rounds, so arms may differ more than in the first."""
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


# ---- gpu.py runs where there is no GPU ----------------------------------------------------------


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(ROOT)
    return importlib.import_module("gpu")


@pytest.mark.parametrize("method", ["fedvpt", "fedpha"])
def test_a_small_round_is_timed_and_its_operations_are_counted(
    benchmark, monkeypatch, capsys, method
):
    """Clients have two images of micro size."""
    monkeypatch.setattr(benchmark, "SMALL", {"images": 2, "batch": 2, "epochs": 1})
    arguments = ["gpu.py", "--small", "--rounds", "1", "--methods", method]
    monkeypatch.setattr(sys, "argv", arguments)
    benchmark.main()
    name, first, later, evaluation, count, *_ = (
        capsys.readouterr().out.splitlines()[-1].split("|")[1:]
    )
    assert name.strip() == method
    assert all(float(seconds) > 0 for seconds in (first, later, evaluation))
    assert float(count) > 0


# ---- clip_loops.py times loops that train what FedLoom trains -----------------------------------


RECEIVED = torch.zeros(2, 3)
OURS = (1.5, torch.ones(2, 3))


@pytest.fixture
def script(monkeypatch):
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("clip_loops")


@pytest.mark.parametrize("name", ["promptfl", "fedotp", "fedpha"])
def test_all_arms_train_the_same(script, tiny, name):
    """The two clients have unequal sizes: one does two steps, and the other one step."""
    task, hooks = tiny(name)
    task = with_training(task, epochs=1)
    task.data.participating = [1, 2]
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


# ---- mutants.py breaks lines that are there ------------------------------------------------------


def test_every_named_mutant_has_its_line_and_its_test(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("mutants")
    for file, line, mutant, test in script.NAMED:
        assert (ROOT / file).read_text().count(line) == 1, f"{file}: {line}"
        assert mutant != line
        path, _, name = script.path_of_test(ROOT, test).partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), test


# ---- real_results.py keeps the numbers of docs/results.md ----------------------------------------


def test_tables_of_real_studies_are_the_kept_ones(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("real_results")
    for page in script.PAGES:
        text = page.read_text()
        assert len(script.BLOCK.findall(text)) == text.count("<!-- table ") > 0
        assert script.filled(page) == text, "run: benchmarks/real_results.py write"
    results = (ROOT / "docs/results.md").read_text()
    assert "<summary>How these numbers were made</summary>\n\nAccuracies are from" in results
    assert "How these numbers were made" not in script.README.read_text()


def test_the_kept_results_of_the_default_study_are_those_of_its_config():
    kept = pd.read_parquet(ROOT / "docs/results/default/evaluation.parquet")
    config = read(ROOT / "config.yaml")
    again = "run the study, then: benchmarks/real_results.py keep default"
    assert set(kept["method"]) == set(config["select"]["methods"]), again
    assert set(kept["seed"]) == set(config["study"]["seeds"]), again
    assert kept["round"].max() == config["study"]["rounds"], again
    clients = set(kept["client_id"]) - {SERVER_MODEL}
    (partition,) = config["select"]["partitions"]
    assert len(clients) == config["partitions"][partition]["clients"], again


@pytest.fixture
def sitting(monkeypatch, tmp_path):
    """Return carry_jobs, a plan, its images and features, and three jobs: two done, one killed."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    plan = load_plan()
    monkeypatch.chdir(tmp_path)
    jobs = jobs_of_study(plan)
    done, killed, *_ = jobs["evaluate"]
    later = next(iter(jobs["choose"]))
    data = [*jobs["dataset"], *jobs["cache"]]
    for second, file in enumerate((*data, done, later, killed)):
        write_text(file, str(file))
        os.utime(file, (second, second))
    for file in (*data, done, later):
        write_text(paths.job_receipt(file), "{}")
    return SimpleNamespace(
        carry=importlib.import_module("carry_jobs"),
        plan=plan,
        archive=tmp_path / "study.tar.xz",
        data=data,
        done=done,
        later=later,
        killed=killed,
    )


def test_finished_jobs_are_carried_and_killed_ones_are_not(sitting):
    carry, plan, archive = sitting.carry, sitting.plan, sitting.archive
    assert carry.pack(plan, archive) == 2
    shutil.rmtree(paths.RESULTS)
    with pytest.raises(SystemExit, match="is missing; run the study"):
        carry.unpack(plan, archive)

    for file in sitting.data:
        write_text(file, "made again")
    write_text(sitting.done, "of a job that was killed here")
    assert carry.unpack(plan, archive) == 2
    assert sitting.done.read_text() == str(sitting.done)
    assert not sitting.killed.exists()
    dates = [file.stat().st_mtime for file in (*sitting.data, sitting.done, sitting.later)]
    assert dates == sorted(dates), "Snakemake would make some again"

    write_text(sitting.done, "of a job that finished here")
    assert carry.unpack(plan, archive) == 0
    assert sitting.done.read_text() == "of a job that finished here"


def test_an_archive_is_not_lost(sitting):
    carry, plan, archive = sitting.carry, sitting.plan, sitting.archive
    carry.pack(plan, archive)
    packed = archive.read_bytes()
    paths.job_receipt(sitting.done).unlink()
    with pytest.raises(SystemExit, match=r"study\.tar\.xz has .* unpack it first"):
        carry.pack(plan, archive)
    shutil.rmtree(paths.RESULTS)
    with pytest.raises(SystemExit, match="no finished job of default"):
        carry.pack(plan, archive)
    assert archive.read_bytes() == packed


def test_the_work_of_operators_is_counted_without_views(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    work = importlib.import_module("device_work")
    a = torch.ones(4, 3)
    b = torch.ones(3, 2)
    assert work.count_work(lambda: a @ b) == work.Work(1, 4 * (12 + 6 + 8))
    assert work.count_work(lambda: a.T) == work.Work()
    assert work.count_work(lambda: a.T.contiguous()) == work.Work(1, 96, 1, 96)
    assert work.count_work(lambda: a.double()) == work.Work(1, 48 + 96, 1, 48 + 96)
    assert work.count_work(lambda: a.add_(1)) == work.Work(1, 96)
    repeated = torch.ones(1, 3).expand(4, 3)
    assert work.count_work(lambda: repeated + a) == work.Work(1, 12 + 48 + 48)
