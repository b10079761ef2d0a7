"""`study.evaluate_clients`: some clients are evaluated after rounds that no table reports."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table
from fedloom.common.ids import SERVER_MODEL
from fedloom.config.protocols import evaluated_rounds, sampled_rounds
from fedloom.contract.tiny import tiny_job, tiny_outputs
from fedloom.federated import training_job
from fedloom.federated.training_job import clients_to_evaluate
from fedloom.hooks import manifest
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.resources import estimates
from shown_runs import draw, shown


def _job(name="head_tuning", count=3, sampled=(1, 2), **changes):
    job = replace(
        tiny_job(manifest.find_method(name), last=3),
        evaluated_rounds=(1, 2, 3),
        sampled_rounds=sampled,
    )
    return replace(job, clients_per_sample=count, **changes)


def _drawn(task, number, **changes):
    return list(clients_to_evaluate(task.at(number), _job(**changes)))


def test_clients_are_drawn_from_seed_and_round(tiny):
    task, _ = tiny("head_tuning")
    everyone = list(range(6))
    first, second = (_drawn(task, number) for number in (1, 2))
    assert len(first) == 3 and first == sorted(set(first)) and set(first) < set(everyone)
    assert first == _drawn(task, 1) and first != second
    seeds = [_drawn(replace(task, seed=seed), 1) for seed in range(5)]
    assert len({tuple(drawn) for drawn in seeds}) > 1
    assert _drawn(task, 3) == everyone, "no table reports the others"
    assert _drawn(task, 1, count=None) == _drawn(task, 1, count=6) == everyone
    assert _drawn(task, 1, count=600) == everyone


def test_groups_are_drawn_in_proportion(tiny):
    """Client 0 of six is held out; at least one participating client is always drawn."""
    task, _ = tiny("head_tuning")
    assert 0 not in _drawn(task, 1, count=2)
    assert 0 in _drawn(task, 1, count=5)
    few = replace(task, data=replace(task.data, participating=[4]))
    draws = [_drawn(replace(few, seed=seed), 1, count=1) for seed in range(4)]
    assert draws == [[4]] * 4
    half = replace(task, data=replace(task.data, participating=[1, 3, 5]))
    assert sorted(k % 2 for k in _drawn(half, 1, count=4)) == [0, 0, 1, 1]


@pytest.fixture
def train(tiny, tmp_path):
    """Return train(folder, name, ...), which returns a job's task and its evaluations' rows."""

    def run(folder, name="head_tuning", **changes):
        task, hooks = tiny(name)
        (tmp_path / folder).mkdir(exist_ok=True)
        outputs = tiny_outputs(tmp_path / folder, 3)
        training_job.train_rounds(task, hooks, _job(name, **changes), None, outputs, "same")
        return task, read_table(outputs.evaluation).to_pandas()

    return run


def test_rows_are_those_of_the_drawn_clients(train):
    task, rows = train("some")
    _, every = train("all", count=None)
    clients = rows[rows["client_id"] != SERVER_MODEL]
    for number in (1, 2, 3):
        found = clients[clients["round"] == number]["client_id"]
        assert found.tolist() == list(clients_to_evaluate(task.at(number), _job()))
    keys = ["round", "client_id"]
    both = rows.merge(every, on=keys, suffixes=("", "_all"))
    assert len(both) == len(rows) < len(every)
    assert (both["num_correct"] == both["num_correct_all"]).all()
    assert both["loss"].tolist() == pytest.approx(both["loss_all"].tolist(), rel=1e-5)
    assert (both["num_test"] == both["num_test_all"]).all(), "the server's model answers all images"


def test_drawn_clients_answer_where_there_is_no_servers_model(train):
    task, rows = train("p_pt", "p_pt")
    overall = rows[rows["client_id"] == SERVER_MODEL].set_index("round")["num_test"]
    images = sum(map(len, task.data.test))
    models = {
        number: sum(k in task.data.participating for k in _drawn(task, number))
        for number in (1, 2, 3)
    }
    assert overall.to_dict() == {number: count * images for number, count in models.items()}
    assert models[1] < models[3] == 5


def test_a_checkpoint_with_other_clients_evaluations_is_not_resumed(train, tmp_path, caplog):
    train("whole")
    train("other", count=4)
    caplog.set_level(logging.INFO)
    train("other")
    assert "one of other clients, after round 1; starting after round 0" in caplog.text
    files = [tiny_outputs(tmp_path / name, 3).evaluation for name in ("whole", "other")]
    assert files[0].read_bytes() == files[1].read_bytes()
    caplog.clear()
    train("other")
    assert "resumed after round 3" in caplog.text


def _plan(**study):
    config = default_config()
    asked = {"rounds": 10, "rounds_per_job": 4, "evaluate_every": 2, "evaluate_clients": 5}
    config["study"] |= asked | {"report": {"last_evaluations": 2}} | study
    config["select"]["tables"] = ["main"]
    return Plan(resolve(config))


def test_all_clients_are_evaluated_in_the_rounds_that_tables_report():
    plan = _plan()
    study = plan.settings.study
    assert evaluated_rounds(study) == [2, 4, 6, 8, 10]
    assert sampled_rounds(study) == [2, 4, 6]
    worst = _plan(report={"last_evaluations": 1, "worst_of_evaluations": 3}).settings.study
    assert sampled_rounds(worst) == [2, 4]
    assert sampled_rounds(_plan(evaluate_clients=None).settings.study) == []
    run = plan.runs[0]
    asked = {}
    for end in ("0004", "0008", "0010"):
        job = plan.job("train", SimpleNamespace(**vars(run), end=end))
        asked[end] = job.sampled_rounds, job.clients_per_sample
    assert asked == {"0004": ((2, 4), 5), "0008": ((6,), 5), "0010": ((), None)}


def test_it_is_no_part_of_what_a_checkpoint_depends_on(tmp_path):
    task_of = SimpleNamespace(type="cpu")
    one, other = (training_job.job_fingerprint(_job(count=n), [], task_of) for n in (3, None))
    assert one == other


@pytest.mark.parametrize("value", [0, -1, 2.5, "many"])
def test_what_is_no_number_of_clients_is_refused(value):
    with pytest.raises(FedLoomError, match=r"study.evaluate_clients"):
        _plan(evaluate_clients=value)


def test_estimates_count_the_drawn_clients_alone():
    def operations(**study):
        plan = _plan(rounds=100, evaluate_every=1, **study)
        run = next(run for run in plan.runs if run.method == "fedvpt")
        labels = SimpleNamespace(**vars(run), end="0004")
        return estimates.estimate_job(plan.settings, "train", labels).operations

    few, some, everyone = (operations(evaluate_clients=n) for n in (1, 5, None))
    assert few < some < everyone == operations(evaluate_clients=1000)


def test_a_figure_by_round_says_of_how_many_clients(tmp_path):
    """The label counts participating clients run by run, since federations differ in size."""
    runs = []
    for name, counts in (("a", {1: 2, 2: 4}), ("b", {1: 3, 2: 3})):
        rows = [
            {"round": n, "client_id": k, "participating": True}
            for n, count in counts.items()
            for k in range(count)
        ]
        rows += [{"round": 2, "client_id": SERVER_MODEL, "participating": False}]
        frame = pd.DataFrame(rows).assign(num_test=10, num_correct=5, personalized=False)
        frame.to_parquet(tmp_path / f"{name}.parquet")
        runs.append(shown(evaluation=tmp_path / f"{name}.parquet", partition=name))
    label = draw("convergence", runs).get_supylabel()
    assert label == "Test accuracy (%)\n(2 of 4 clients; all in reported rounds)"
    assert draw("convergence", runs[1:]).get_supylabel() == "Test accuracy (%)"


def test_a_table_that_looks_for_a_round_needs_all_clients():
    config = default_config()
    config["study"]["evaluate_clients"] = 2
    config["tables"]["cost"] = {"kind": "communication", "target": 75}
    config["select"]["tables"] = ["cost"]
    with pytest.raises(FedLoomError, match=r"tables\.cost\.target: .* study\.evaluate_clients"):
        resolve(config)
