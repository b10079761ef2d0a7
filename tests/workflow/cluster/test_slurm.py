"""A study on a real Slurm: jobs are cancelled, stopped and orphaned, and nothing is lost."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_study
from one_node import wait_for
from tiny_study import ROUNDS

pytestmark = pytest.mark.slow

GENERIC = (
    *("--workflow-profile", "profiles/cluster-generic", "--latency-wait", "10"),
    *("--seconds-between-status-checks", "1", *tiny_study.TARGETS),
)


def log_of(folder: Path, seed: int) -> str:
    """Return what the job that trains a run has written to its log."""
    run = tiny_study.RUN.format(seed).replace("results/runs", "results/logs/train")
    with suppress(FileNotFoundError):  # not there yet, or removed by Snakemake before a new attempt
        return (folder / run / f"rounds/{ROUNDS:04}.log").read_text()
    return ""


def rounds_done(folder: Path, seed: int) -> bool:
    return (folder / tiny_study.RUN.format(seed) / "rounds/checkpoint.safetensors").exists()


def job_of(folder: Path, seed: int) -> str:
    """Return Slurm's id of the job that trains a run, as its log gives it."""
    return re.match(r"on \S+, SLURM_JOB_ID (\d+)\n", log_of(folder, seed))[1]


def resumed_after(folder: Path, seed: int) -> int:
    """Return the round after which the job went on, or 0 if it did not."""
    line = re.search(r"resumed after round (\d+)", log_of(folder, seed))
    return int(line[1]) if line else 0


@pytest.fixture(scope="module")
def disturbed(slurm, prepared, tmp_path_factory):
    """Return the folder of a study of two runs on Slurm, disturbed jobs, and their last rounds.

    The first run's job is cancelled, the second's is told to stop, and when others have taken their
    places, Snakemake is killed and started again.
    """
    folder = tiny_study.copy(prepared, tmp_path_factory.mktemp("slurm") / "checkout")
    process = tiny_study.start(folder, *GENERIC, environment=slurm.environment)
    ids = {}
    commands = {0: ["scancel"], 1: ["scancel", "--batch", "--signal=USR1"]}
    for seed in tiny_study.SEEDS:
        wait_for(lambda seed=seed: rounds_done(folder, seed), f"a round of seed {seed}")
        ids[seed] = job_of(folder, seed)
        slurm.run(*commands[seed], ids[seed])
    wait_for(lambda: all(resumed_after(folder, seed) for seed in ids), "second attempts")
    rounds = {seed: resumed_after(folder, seed) for seed in ids}
    process.kill()
    process.wait()
    assert tiny_study.start(folder, "--unlock", environment=slurm.environment).wait() == 0
    again = tiny_study.start(folder, *GENERIC, environment=slurm.environment)
    assert again.wait() == 0, (folder / "snakemake.log").read_text()
    return folder, ids, rounds


def test_jobs_of_a_cancelled_and_a_stopped_run_are_tried_again_and_go_on(slurm, disturbed):
    folder, ids, _ = disturbed
    assert slurm.states(ids.values()) == ["CANCELLED", "FAILED"]
    for seed, first in ids.items():
        assert job_of(folder, seed) != first
        assert resumed_after(folder, seed) > 0


def test_a_job_that_is_told_to_stop_says_after_which_round_it_did(disturbed):
    folder, ids, rounds = disturbed
    log = (folder / f".snakemake/slurm_logs/{ids[1]}.log").read_text()
    done = re.search(rf"error: .*/seed1: stopped by SIGUSR1 after round (\d+) of {ROUNDS}", log)
    assert int(done[1]) == rounds[1]


def test_evaluations_are_those_of_undisturbed_runs_to_the_byte(disturbed, straight):
    folder, *_ = disturbed
    assert tiny_study.evaluations(folder) == straight


def test_runs_that_share_an_allocation(slurm, prepared, straight, tmp_path):
    folder = tiny_study.copy(prepared, tmp_path / "checkout")
    group = ("--groups", "train=runs", "--group-components", "runs=2")
    process = tiny_study.start(folder, *GENERIC, *group, environment=slurm.environment)
    assert process.wait() == 0, (folder / "snakemake.log").read_text()
    assert job_of(folder, 0) == job_of(folder, 1)
    assert tiny_study.evaluations(folder) == straight


def test_the_profile_of_slurms_own_executor(slurm, prepared, straight, tmp_path):
    folder = tiny_study.copy(prepared, tmp_path / "checkout")
    arguments = (
        *("--workflow-profile", "profiles/slurm", "--latency-wait", "10"),
        *("--slurm-init-seconds-before-status-checks", "5", tiny_study.TARGETS[0]),
    )
    process = tiny_study.start(folder, *arguments, environment=slurm.environment)
    assert process.wait() == 0, (folder / "snakemake.log").read_text()
    assert slurm.states([job_of(folder, 0)]) == ["COMPLETED"]
    assert tiny_study.evaluations(folder, seeds=[0]) == straight[:1]
