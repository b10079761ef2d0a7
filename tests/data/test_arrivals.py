"""Streams: what arrives in which round, who trains on it and is tested, and what is forgotten."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data.partition import divide_dataset
from fedloom.federated.evaluate import evaluate
from fedloom.federated.evaluate_test_sets import evaluate_test_sets
from fedloom.federated.round import initial_state, train_round
from partitioned import CLASSES, DOMAINS, dataset, with_domains
from refusals import refused
from shown_runs import filled, shown, table_kind

COLUMN = {"classes": "label", "domains": "domain", "clients": "client_id"}
IID = {"scheme": "iid", "clients": 6, "held_out": 0}
DOMAIN = {"scheme": "domain", "clients_per_domain": 2, "alpha": 1.0, "kind": "client"}
STREAM = IID | {"arrivals": {"of": "classes", "at": [3, 5], "keep": False}}
NEWCOMERS = {"of": "clients", "at": [2], "keep": False}


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(list(COLUMN)), st.booleans(), st.integers(0, 3))
def test_each_class_domain_or_client_arrives_whole_and_the_division_stays(of, keep, seed):
    labels, test, domains = with_domains(seed)
    spec = IID | {"arrivals": {"of": of, "at": [4], "keep": keep}}
    table, plain = (divide_dataset(labels, test, domains, s, seed) for s in (spec, IID))
    assert table.drop_columns(["arrives", "leaves"]).equals(plain)
    rows = table.to_pandas()
    rounds = rows.groupby(COLUMN[of])[["arrives", "leaves"]].nunique()
    assert (rounds == 1).all(axis=None)
    assert set(rows["arrives"]) == {1, 4}
    last = rows["leaves"].max()
    first = rows["arrives"] == 1
    assert set(rows["leaves"][~first]) == {last} and last > 10**9
    assert set(rows["leaves"][first]) == {last if keep else 4}


def test_there_are_as_many_domains_or_classes_as_parts_or_more():
    data = with_domains(0)
    labels = range(CLASSES)
    for of, key, count in (
        ("domains", {}, len(DOMAINS)),
        ("classes", {"novel_classes": [*labels[2:]]}, 2),  # novel classes are in no part
    ):
        rounds = [*range(2, count + 2)]
        arrivals = {"of": of, "at": rounds[:-1], "keep": False}
        rows = divide_dataset(*data, IID | key | {"arrivals": arrivals}, 0).to_pandas()
        assert set(rows[rows["client_id"] >= 0]["arrives"]) == {1, *rounds[:-1]}
        with refused("arrivals", of, count):
            divide_dataset(*data, IID | key | {"arrivals": arrivals | {"at": rounds}}, 0)


def test_what_comes_first_is_drawn_by_the_seed_of_the_run_or_the_partition():
    def first(run_seed, **own):
        rows = divide_dataset(*dataset(0), STREAM | own, run_seed).to_pandas()
        return {*rows[rows["arrives"] == 1]["label"]}

    assert len({frozenset(first(seed)) for seed in range(4)}) > 1
    assert first(0, seed=7) == first(1, seed=7) == first(7)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("of", "scheme"),
    [
        ("clients", IID | {"held_out": 0.5}),
        ("domains", DOMAIN | {"held_out_domains": ["ink"]}),
    ],
)
def test_each_part_has_clients_that_train_on_it(of, scheme, seed):
    """No part consists of held-out clients alone, or of domains that only they have."""
    arrivals = {"of": of, "at": [3] if of == "domains" else [3, 5], "keep": False}
    rows = divide_dataset(*with_domains(seed), scheme | {"arrivals": arrivals}, seed).to_pandas()
    training = rows[rows["participating"] & ~rows["test"]]
    assert set(training["arrives"]) == {1, *arrivals["at"]}


@pytest.fixture
def stream(tiny):
    return tiny("fedvpt", partition=STREAM)


def test_clients_train_on_the_newest_part_and_are_tested_on_all_that_arrived(stream):
    task, _ = stream
    whole = task.data
    arrives, leaves = whole.rounds
    for number, part in ((0, 0), (1, 0), (2, 0), (3, 1), (5, 2), (9, 2)):
        data = task.at(number).data
        first = max(number, 1)
        for client in range(whole.num_clients):
            for now, every, there in (
                (data.train, whole.train, (arrives <= first) & (first < leaves)),
                (data.test, whole.test, arrives <= first),
            ):
                expected = [row for row in every[client] if there[row]]
                assert now[client].tolist() == expected
        arrived = task.at(number).arrived
        assert (arrived.part, arrived.parts) == (part, 3)
        labels = whole.labels.numpy()
        assert set(np.flatnonzero(arrived.training)) == {*labels[np.concatenate(data.train)]}
        assert set(np.flatnonzero(arrived.seen)) == {*labels[np.concatenate(data.test)]}
    assert task.at(9).at(1).data is task.at(1).data


def test_classes_count_if_a_participating_client_holds_them(tiny):
    uneven = STREAM | {"scheme": "pathological", "classes_per_client": 2}
    task, _ = tiny("fedvpt", partition=uneven)
    labels = task.data.labels.numpy()
    arrives = task.data.rounds.arrives
    for client, rows in enumerate(task.data.train):
        alone = replace(task, data=replace(task.data, participating=[client]))
        for number in (1, 3):
            arrived = alone.at(number).arrived
            for flags, there in (
                (arrived.training, arrives[rows] == number),
                (arrived.seen, arrives[rows] <= number),
            ):
                assert set(np.flatnonzero(flags)) == {*labels[rows[there]]}


def test_without_a_stream_there_is_one_part_with_all_classes(tiny):
    task, _ = tiny("fedvpt")
    arrived = task.at(3).arrived
    assert (arrived.part, arrived.parts) == (0, 1)
    assert arrived.training.all() and arrived.seen.all()
    assert len(arrived.training) == len(arrived.seen) == task.num_classes


def test_states_are_initialised_while_the_first_part_is_there(tiny):
    task, hooks = tiny("fppl", partition=STREAM)
    params = initial_state(task, hooks).server["params"]
    assert params["keys"].shape[0] == params["prompts"].shape[0] == 3
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    state, _ = train_round(task.at(3), hooks, state)
    assert state.server["constants"]["trained"].tolist() == [1, 1, 0]


def test_priors_are_of_all_training_images_that_arrived(stream):
    task, _ = stream
    arrives = task.data.rounds.arrives
    labels = task.data.labels.numpy()
    for number in (1, 3):
        for client, rows in enumerate(task.data.train):
            counts = np.bincount(labels[rows[arrives[rows] <= number]], minlength=task.num_classes)
            wanted = torch.from_numpy(counts / counts.sum()).float()
            torch.testing.assert_close(task.at(number).data.priors[client], wanted)


def test_priors_of_a_client_that_is_yet_to_arrive_are_uniform(tiny):
    task, _ = tiny("fedvpt", partition=IID | {"arrivals": NEWCOMERS})
    first = task.at(1).data
    absent = [k for k, rows in enumerate(first.train) if not len(rows)]
    assert len(absent) == 3
    assert (first.priors[absent] == 1 / task.num_classes).all()


def test_clients_that_are_away_are_neither_selected_nor_tested(tiny):
    task, hooks = tiny("fedvpt", partition=IID | {"arrivals": NEWCOMERS})
    state = initial_state(task, hooks)
    first = {k for k, rows in enumerate(task.at(1).data.train) if len(rows)}
    assert len(first) == 3
    for number, training, tested in ((1, first, first), (2, {*range(6)} - first, {*range(6)})):
        now = task.at(number)
        state, row = train_round(now, hooks, state)
        assert {update.client_id for update in row.updates} <= training
        assert {entry.client_id for entry in evaluate(now, hooks, state)} == tested


def test_evaluations_hold_the_accuracy_on_each_part(stream):
    task, hooks = stream
    now = task.at(3)
    rows = evaluate(now, hooks, initial_state(task, hooks))
    arrives = task.data.rounds.arrives
    for row in rows:
        images = now.data.test[row.client_id]
        sizes = [int((arrives[images] == start).sum()) for start in (1, 3)]
        parts = [row.metrics[f"part_{number}"] for number in (1, 2)]
        correct = sum(size * part for size, part in zip(sizes, parts, strict=True))
        assert correct == pytest.approx(row.num_correct)
        assert "part_3" not in row.metrics


def test_clients_that_have_arrived_answer_unseen_images_which_are_in_no_part(tiny):
    partition = IID | {"novel_classes": [1, 2], "arrivals": NEWCOMERS}
    task, hooks = tiny("promptfl", partition=partition)
    first = [k for k, rows in enumerate(task.at(1).data.test) if len(rows)]
    assert len(first) == 3
    for number, clients in ((1, first), (2, [*range(6)])):
        rows = evaluate_test_sets(task.at(number), hooks, initial_state(task, hooks))
        for name in ("own", "base", "novel"):
            assert [row.evaluation.client_id for row in rows if row.test_set == name] == clients
        assert not any(key.startswith("part_") for row in rows for key in row.columns())


def test_forgetting_is_the_fall_from_the_highest_accuracy_before(tmp_path):
    nan = float("nan")
    rows = [
        # round, client, participating, parts 1, 9, 10, 11; only a client that never trains has 11
        (1, 0, True, 0.8, nan, nan, nan),
        (1, 1, True, 0.6, nan, nan, nan),
        (2, 0, True, 0.9, 0.6, nan, nan),
        (2, 1, True, 0.7, 0.4, nan, nan),
        (3, 0, True, 0.4, 0.2, 1.0, nan),
        (3, 1, True, 0.2, nan, 0.8, nan),
        (3, 2, False, 1.0, 1.0, 1.0, 1.0),
        (4, 0, True, 0.5, 0.7, 0.4, nan),
        (4, 1, True, 0.3, 0.5, 0.2, nan),
    ]
    parts = ["part_1", "part_9", "part_10", "part_11"]
    frame = pd.DataFrame(rows, columns=["round", "client_id", "participating", *parts])
    frame = frame[sorted(frame)].assign(personalized=False, num_test=10, num_correct=5)
    filled(frame, "evaluation").to_parquet(tmp_path / "evaluation.parquet")
    run = shown(evaluation=tmp_path / "evaluation.parquet")
    row = table_kind("forgetting").measure(run)
    by_round = [0.7, (0.8 + 0.5) / 2, (0.3 + 0.2 + 0.9) / 3, (0.4 + 0.6 + 0.3) / 3]
    assert row["last"] == pytest.approx(100 * by_round[-1])
    assert row["average"] == pytest.approx(100 * sum(by_round) / 4)
    # part 1 has lost, part 9 has gained, and part 10 is the newest
    assert row["forgetting"] == pytest.approx(100 * ((0.8 - 0.4) + (0.5 - 0.6)) / 2)
