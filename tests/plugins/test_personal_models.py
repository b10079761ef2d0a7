"""Ditto and IFCA: their local steps and their server's, by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedloom.data.batch import shuffled_batches
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import Update, stack

# ---- Ditto ----------------------------------------------------------------------------------


def descend(task, client, start, towards, lam, phase):
    """Return v after SGD with momentum on one client's F_k + lam / 2 ||v - towards||^2."""
    training = task.training
    v = {name: value.clone() for name, value in start.items()}
    buffer = {name: 0.0 for name in v}
    stream = (training.batch_size, training.epochs, task.seed, task.round, client, phase)
    for rows in shuffled_batches(task.data.train[client], *stream):
        batch = task.data.batch([rows])
        v = {name: value.detach().requires_grad_() for name, value in v.items()}
        logits = task.backbone.forward_prompted(
            batch.images, v["shared_prompts"][None], v["head"][None]
        )
        F.cross_entropy(logits[0], batch.labels[0]).backward()
        gradient = {n: x.grad + lam * (x.detach() - towards[n]) for n, x in v.items()}
        norm = torch.sqrt(sum(g.square().sum() for g in gradient.values()))
        factor = min(1.0, training.clip / float(norm))
        for name in v:
            buffer[name] = training.momentum * buffer[name] + factor * gradient[name]
            v[name] = (
                v[name].detach() - training.lr * training.decay ** (task.round - 1) * buffer[name]
            )
    return v


@pytest.mark.parametrize("lam", [0.0, 2.0])
def test_ditto_trains_the_shared_model_and_holds_the_personal_one_to_it(tiny, lam):
    task, hooks = tiny("ditto", lam=lam)
    first, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    state, _ = train_round(task.at(2), hooks, first)
    again = [k for k in state.clients if k in first.clients]
    changed = [k for k in again if differs(state, first, k)]
    assert changed, "a client took part twice"
    w = first.server["params"]
    for client in changed:
        v = first.clients[client]["personal"]
        expected = descend(task.at(2), client, v, w, lam, phase=1)
        for name, value in state.clients[client]["personal"].items():
            torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-3)


def differs(state, before, client):
    new, old = (s.clients[client]["personal"]["head"] for s in (state, before))
    return not torch.equal(new, old)


def test_dittos_server_has_the_mean_of_what_plain_training_gives(tiny):
    task, hooks = tiny("ditto")
    start = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, start)
    w = start.server["params"]
    ids = [entry.client_id for entry in row.updates]
    trained = [descend(task.at(1), k, w, w, 0.0, phase=0) for k in ids]
    for name, value in state.server["params"].items():
        mean = torch.stack([each[name] for each in trained]).mean(0)
        torch.testing.assert_close(value, mean, atol=1e-4, rtol=1e-3)
    assert all(entry.metrics["personal_loss"] > 0 for entry in row.updates)


# ---- IFCA -----------------------------------------------------------------------------------


def models_of(server):
    params = server["params"]
    for j, head in enumerate(params["head"]):
        prompts = params["shared_prompts"]
        yield prompts[0 if len(prompts) == 1 else j], head


def best(task, server, client):
    """Return which model has the lowest loss, summed in float64, on a client's training images."""
    batch = task.data.batch([task.data.train[client]])
    losses = []
    for prompts, head in models_of(server):
        logits = task.backbone.forward_prompted(batch.images, prompts[None], head[None])[0]
        scores = logits.double().log_softmax(-1)
        losses.append(-sum(float(row[y]) for row, y in zip(scores, batch.labels[0], strict=True)))
    return int(np.argmin(losses))


@pytest.mark.parametrize("shared", [False, True])
def test_ifca_trains_and_answers_with_the_model_of_the_lowest_loss(tiny, shared):
    task, hooks = tiny("ifca", clusters=3, share_prompts=shared, head="drawn")
    start = initial_state(task, hooks)
    assert len(start.server["params"]["shared_prompts"]) == (1 if shared else 3)
    state, row = train_round(task.at(1), hooks, start)
    chosen = {k: best(task, start.server, k) for k in state.clients}
    assert {k: int(own["cluster"]) for k, own in state.clients.items()} == chosen
    assert {entry.client_id: entry.metrics["cluster"] for entry in row.updates} == chosen
    assert len(set(chosen.values())) > 1, "else there is one cluster"
    for j in range(3):
        old, new = (s.server["params"]["head"][j] for s in (start, state))
        assert torch.equal(old, new) != (j in chosen.values())
    after = {k: best(task, state.server, k) for k in range(6)}
    received = stack([{"params": state.server["params"]}] * 6)
    clients = cohort(task, list(range(6)), [hooks.init_client(task=task, client=0)] * 6)
    found = hooks.personalize(task=task, received=received, clients=clients)
    assert found["cluster"].tolist() == list(after.values()), "held-out clients too"


def test_of_models_with_heads_of_zeros_every_client_of_ifca_draws_one_at_first(tiny):
    task, hooks = tiny("ifca", clusters=3)
    start = initial_state(task, hooks)
    assert not start.server["params"]["head"].any(), "as the heads of all methods"
    ids = list(range(4))
    states = [hooks.init_client(task=task, client=0)] * 4
    received = stack([{"params": start.server["params"]}] * 4)

    def chosen(number):
        clients = cohort(task, ids, states)
        found = hooks.client_update(task=task.at(number), received=received, clients=clients)
        return [int(update.client_state["cluster"]) for update in found]

    assert len(set(chosen(1) + chosen(2))) == 3 and chosen(1) != chosen(2)
    assert chosen(1) == chosen(1)


def test_ifca_answers_with_the_model_of_its_cluster(tiny):
    task, hooks = tiny("ifca", clusters=3)
    server = initial_state(task, hooks).server
    received = stack([{"params": server["params"]}] * 3)
    states = [{"cluster": torch.tensor(j)} for j in (2, 0, 1)]
    clients = cohort(task, [1, 2, 3], states)
    batch = task.data.batch([task.data.test[1][:2]] * 3)
    found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    models = list(models_of(server))
    for k, j in enumerate((2, 0, 1)):
        prompts, head = models[j]
        expected = task.backbone.forward_prompted(batch.images[k][None], prompts[None], head[None])
        torch.testing.assert_close(found[k], expected[0], atol=1e-5, rtol=1e-5)
    stranger = cohort(task, [-1], [states[0]])
    one = stack([{"params": server["params"]}])
    assert hooks.predict(task=task, received=one, clients=stranger, batch=batch) is None


@pytest.mark.parametrize("shared", [False, True])
def test_ifca_averages_within_clusters_and_shared_prompts_over_all(tiny, shared):
    task, hooks = tiny("ifca", clusters=3, share_prompts=shared)
    server = initial_state(task, hooks).server
    generator = torch.Generator().manual_seed(0)
    updates = []
    for client, j in enumerate((0, 2, 0)):
        params = {
            "head": torch.randn(4, 16, generator=generator),
            "shared_prompts": torch.randn(1, 16, generator=generator),
        }
        payload = {"params": params, "choice": torch.eye(3, dtype=torch.int64)[j]}
        updates.append(Update(payload, {}, 1 + client, {"train_loss": 0.0}, client=client))
    after = hooks.aggregate(task=task, server=server, updates=updates)["params"]
    sent = [update.payload["params"] for update in updates]
    for name in ("head", "shared_prompts"):
        values = [each[name] for each in sent]
        if name == "shared_prompts" and shared:
            torch.testing.assert_close(after[name], (sum(values) / 3)[None])
            continue
        torch.testing.assert_close(after[name][0], (values[0] + values[2]) / 2)
        assert torch.equal(after[name][1], server["params"][name][1]), "of nobody: as it was"
        torch.testing.assert_close(after[name][2], values[1])
