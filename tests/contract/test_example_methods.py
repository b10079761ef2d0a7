"""The methods of examples/, against their papers."""

import sys

import numpy as np
import pytest
import torch

from example_runs import changed, plugin, runs_of_examples, update
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.hooks import loader
from fedloom.toolbox import stack


@pytest.fixture
def run(tmp_path):
    """Return run(name, **options), which makes a task and hooks of an example.

    A wrapper is put around Head-Tuning.
    """
    return runs_of_examples(tmp_path)


pytestmark = pytest.mark.slow


def module(name):
    loader.import_plugin(plugin(name))
    return sys.modules[f"fedloom_plugins.{name}.plugin"]


def test_apfl_mixes_the_trained_models_and_sends_the_shared_one_alone(run, monkeypatch):
    task, hooks = run("apfl_prompts", alpha=0.25)
    seen = []
    original = module("apfl_prompts").fl.train_locally

    def watched(*given, **more):
        seen.append(original(*given, **more))
        return seen[-1]

    monkeypatch.setattr(module("apfl_prompts").fl, "train_locally", watched)
    state = initial_state(task, hooks)
    for number in (1, 2):  # in the first round the two models train from equal starts
        state, row = train_round(task.at(number), hooks, state)
    shared, own = (seen[-1].params[name]["head"] for name in ("shared", "own"))
    ids = sorted(update.client_id for update in row.updates)
    kept = torch.stack([state.clients[k]["own"]["head"] for k in ids])
    torch.testing.assert_close(kept, 0.75 * shared + 0.25 * own)
    sent = state.server["params"]["shared"].values()
    assert row.bytes_up == 3 * 4 * sum(value.numel() for value in sent)


def test_fedrep_trains_heads_then_the_body_and_sends_the_body_alone(run, monkeypatch):
    task, hooks = run("fedrep_prompts")
    seen = []
    original = module("fedrep_prompts").fl.train_locally

    def watched(*given, train, **more):
        trained = original(*given, train=train, **more)
        seen.append((train, more.get("epochs"), trained.params))
        return trained

    monkeypatch.setattr(module("fedrep_prompts").fl, "train_locally", watched)
    start = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, start)
    (heads, both) = seen
    assert heads[:2] == (("head",), task.options.head_epochs)
    assert both[:2] == (("shared_prompts",), None), "the epochs of the study"
    body = start.server["params"]["shared_prompts"]
    assert not changed(heads[2]["shared_prompts"], body.expand(3, -1, -1))
    assert not changed(both[2]["head"], heads[2]["head"])
    kept = torch.stack([state.clients[k]["head"] for k in sorted(state.clients)])
    assert not changed(kept, heads[2]["head"])
    mean = both[2]["shared_prompts"].mean(0)
    torch.testing.assert_close(state.server["params"]["shared_prompts"], mean)
    assert row.bytes_up == 3 * 4 * body.numel()


@pytest.mark.parametrize("name", ["fedrep_prompts", "fedbabu_prompts"])
def test_a_held_out_client_learns_its_head_before_the_test(run, name):
    task, hooks = run(name)
    state = initial_state(task, hooks)
    for number in (1, 2):
        state, _ = train_round(task.at(number), hooks, state)
    # the first client is held out: a row before its personalisation, and one after
    before, after, *_ = evaluate(task.at(2), hooks, state)
    assert before.client_id == after.client_id == 0 and not before.participating
    assert after.personalized and after.loss < 0.9 * before.loss


def test_fedbabu_never_trains_nor_sends_its_head(run):
    task, hooks = run("fedbabu_prompts")
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert row.bytes_up == row.bytes_down == 3 * 4 * task.options.prompts * 16
    clients = cohort(task, [1, 2], [{}, {}])
    received = stack([{"params": state.server["params"]}] * 2)
    heads = [
        module("fedbabu_prompts").client_models(task.at(t), received, clients)["head"]
        for t in (0, 1, 7)
    ]
    assert all(torch.equal(heads[0], head) for head in heads)
    assert torch.equal(heads[0][0], heads[0][1]) and heads[0].abs().sum() > 0
    tuned = hooks.personalize(task=task.at(1), received=received, clients=clients)
    assert changed(tuned["head"], heads[0])
    assert changed(tuned["shared_prompts"], received["params"]["shared_prompts"])


def features(task, client, part="train"):
    rows = getattr(task.data, part)[client]
    return task.data.tokens(None)[rows].double().numpy(), task.data.store.labels[rows]


def log_likelihood(x, label, head):
    scores = head @ x
    return scores[label] - np.log(np.exp(scores - scores.max()).sum()) - scores.max()


def test_ifca_trains_the_model_of_the_lowest_loss(run):
    task, hooks = run("ifca_heads", clusters=3)
    start = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, start)
    heads = start.server["params"]["heads"].double().numpy()
    chosen = {}
    for client in state.clients:
        losses = [
            -sum(log_likelihood(x, y, head) for x, y in zip(*features(task, client), strict=True))
            for head in heads
        ]
        chosen[client] = int(np.argmin(losses))
    assert {k: int(own["cluster"]) for k, own in state.clients.items()} == chosen
    assert {r.client_id: r.metrics["cluster"] for r in row.updates} == chosen, "in clients.parquet"
    for j in range(3):
        old, new = (s.server["params"]["heads"][j] for s in (start, state))
        assert changed(old, new) == (j in chosen.values())


def test_ifca_averages_within_clusters(run):
    task, hooks = run("ifca_heads", clusters=3)
    server = initial_state(task, hooks).server
    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(4, 16, generator=generator) for _ in range(3)]
    updates = []
    for client, (head, j) in enumerate(zip(heads, (0, 2, 0), strict=True)):
        sent = update(client, head=head)
        sent.payload["choice"] = torch.eye(3, dtype=torch.int64)[j]
        updates.append(sent)
    after = hooks.aggregate(task=task, server=server, updates=updates)["params"]["heads"]
    torch.testing.assert_close(after[0], (heads[0] + heads[2]) / 2)
    assert not changed(after[1], server["params"]["heads"][1]), "of nobody: as it was"
    torch.testing.assert_close(after[2], heads[1])


def test_fedem_mixes_as_by_hand(run):
    task, hooks = run("fedem_heads", components=3)
    server = initial_state(task, hooks).server
    heads = server["params"]["heads"].double().numpy()
    prior = np.array([0.5, 0.3, 0.2])
    ids = [1, 2]
    clients = cohort(task, ids, [{"weights": torch.tensor(prior).float()} for _ in ids])
    received = stack([{"params": server["params"]} for _ in ids])
    found = hooks.personalize(task=task.at(1), received=received, clients=clients)["weights"]
    batch = task.data.batch([task.data.test[k] for k in ids])
    logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    for k, client in enumerate(ids):
        expected = np.zeros(3)
        for x, y in zip(*features(task, client), strict=True):
            joint = prior * np.exp([log_likelihood(x, y, head) for head in heads])
            expected += joint / joint.sum()
        np.testing.assert_allclose(found[k].numpy(), expected / expected.sum(), atol=1e-5)
        x, _ = features(task, client, "test")
        scores = np.einsum("mcd,nd->nmc", heads, x)
        chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        mixed = np.log(np.einsum("m,nmc->nc", prior, chances))
        np.testing.assert_allclose(logits[k][batch.mask[k]].numpy(), mixed, atol=1e-5)


def test_fedem_minimises_the_losses_weighted_by_the_responsibilities(run):
    task, hooks = run("fedem_heads", components=2)
    heads = initial_state(task, hooks).server["params"]["heads"]
    clients = cohort(task, [1], [{"weights": torch.tensor([0.9, 0.1])}])
    batch = task.data.batch([task.data.train[1]])
    received = stack([{"params": {"heads": heads}}])
    moved = {"heads": received["params"]["heads"] + 0.3}
    values = module("fedem_heads").loss(task, moved, received, clients, batch)[0]
    old = heads.double().numpy()
    new = (heads + 0.3).double().numpy()
    for value, x, y in zip(values, *features(task, 1), strict=True):
        q = np.array([0.9, 0.1]) * np.exp([log_likelihood(x, y, head) for head in old])
        expected = -(q / q.sum()) @ [log_likelihood(x, y, head) for head in new]
        assert value.item() == pytest.approx(expected, abs=1e-5)
