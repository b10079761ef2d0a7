"""Attackers: who they are, and that nobody evaluates them."""

from dataclasses import replace

import pytest

from attacks import IDS, attacked_runs
from fedloom.common.files import read_table
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.federated import training_job
from fedloom.federated.evaluate_test_sets import evaluate_test_sets
from fedloom.federated.round import initial_state
from fedloom.hooks import manifest
from fedloom.toolbox import draw_attackers
from refusals import refused


@pytest.fixture
def run(tmp_path):
    """Return a maker of a task and its hooks, in which two of five clients attack."""
    return attacked_runs(tmp_path)


def test_attackers_are_drawn_by_the_seed_alone_and_more_include_the_fewer(run):
    task, _ = run()
    drawn = [draw_attackers(task, share) for share in (0.2, 0.4, 0.8)]
    assert [len(ids) for ids in drawn] == [1, 2, 4] and set(drawn[2]) < set(IDS)
    assert set(drawn[0]) < set(drawn[1]) < set(drawn[2])
    assert drawn[1] == draw_attackers(task.at(7), 0.4) == sorted(drawn[1])
    seeds = [draw_attackers(replace(task, seed=seed), 0.4) for seed in range(6)]
    assert len({tuple(ids) for ids in seeds}) > 1


@pytest.mark.parametrize(("share", "count"), [(0.05, 0), (0.95, 5)])
def test_there_is_an_attacker_and_an_honest_client(run, share, count):
    with refused(f"share: {share} of 5 participating clients", f"got {count}"):
        draw_attackers(run()[0], share)


def test_wrappers_of_one_seed_have_the_same_attackers(run):
    task, hooks = run("label_flip", "forged_update", share=0.2)
    assert hooks.attackers(task=task) == draw_attackers(task, 0.4)


def test_attackers_are_not_evaluated_and_are_named_in_each_round(run, tmp_path):
    task, hooks = run("label_flip")
    attackers = draw_attackers(task, 0.4)
    job = replace(
        tiny_job(manifest.find_method("head_tuning"), last=2),
        evaluated_rounds=(1, 2),
        global_test=True,
    )
    (tmp_path / "out").mkdir()
    outputs = tiny_outputs(tmp_path / "out", 2)
    training_job.train_rounds(task, hooks, job, None, outputs, "a")
    evaluation, clients = (read_table(f).to_pandas() for f in (outputs.evaluation, outputs.clients))
    everyone = {-1, *range(6)}
    for _, rows in evaluation.groupby("round"):
        assert set(rows["client_id"]) == everyone - set(attackers)
    tested = evaluation[evaluation["client_id"] == -1]["num_test"]
    assert (tested == sum(map(len, task.data.test))).all(), "on all test images"
    named = clients[clients["attacker"] == 1]["client_id"]
    assert set(named) == set(clients["client_id"]) & set(attackers) != set()


def test_a_sample_of_clients_is_one_of_honest_clients(run):
    task, _ = run()
    job = replace(
        tiny_job(manifest.find_method("head_tuning")), sampled_rounds=(1,), clients_per_sample=1
    )
    for seed in range(6):
        now = replace(task, seed=seed).at(1)
        drawn = training_job.clients_to_evaluate(now, job, [1, 2, 3, 4])
        assert list(drawn) == [5], "at least one that participates"


def test_a_job_that_is_stopped_under_an_attack_resumes(run, tmp_path):
    task, hooks = run("label_flip")
    job = replace(tiny_job(manifest.find_method("head_tuning"), last=2), evaluated_rounds=(1, 2))
    outputs = tiny_outputs(tmp_path, 2)
    training_job.train_rounds(task, hooks, job, None, outputs, "a")
    attackers = draw_attackers(task, 0.4)
    assert training_job._resume(outputs.checkpoint, "a", task, job, attackers).round == 2
    assert training_job._resume(outputs.checkpoint, "a", task, job, []) is None


def test_attackers_do_not_answer_images_of_other_data_either(run):
    task, hooks = run("label_flip", method="zero_shot_clip")
    rows = evaluate_test_sets(task.at(1), hooks, initial_state(task, hooks))
    assert {row.evaluation.client_id for row in rows} == set(IDS) - set(draw_attackers(task, 0.4))
