"""Local training with a client axis, rounds, guard, checkpoints."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from changed_task import with_facts, with_limits, with_training
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.trees import stack
from fedloom.data.batch import shuffled_batches
from fedloom.federated.evaluate import evaluate, evaluate_globally
from fedloom.federated.groups import iterate_examples
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import clip_factors, linear, train_locally


def _loss(task, params, received, clients, batch):
    logits = linear(batch.features, params["head"])
    return F.cross_entropy(logits.mT, batch.labels, reduction="none")


def _train(task, ids, *, loss=_loss, number=1, **training):
    task = replace(with_training(task, **training), round=number)
    head = 0.1 * torch.randn(4, task.backbone.width, generator=torch.Generator().manual_seed(0))
    received = stack([{"params": {"head": head}} for _ in ids])
    return head, train_locally(task, loss, received, cohort(task, ids, [{} for _ in ids]))


def _gradients(task, client, weights, *, epochs, size, number=1):
    """Yield gradient and loss of one client's batches in float64 NumPy, image by image.

    `weights` [C, d] is read anew for every batch.
    """
    stream = shuffled_batches(task.data.train[client], size, epochs, task.seed, number, client, 0)
    for rows in stream:
        gradient = np.zeros_like(weights)
        loss = 0.0
        for row in rows:
            x = task.data.tokens(None)[row].double().numpy()
            y = task.data.store.labels[row]
            p = np.exp(weights @ x)
            p /= p.sum()
            loss -= np.log(p[y])
            p[y] -= 1
            gradient += np.outer(p, x)
        yield gradient / len(rows), loss / len(rows)


def _by_hand(task, client, head, *, lr, momentum, decay, clip, epochs, size):
    """Train one client by SGD in float64 NumPy."""
    weights = head.double().numpy().copy()
    velocity = np.zeros_like(weights)
    losses = []
    for gradient, loss in _gradients(task, client, weights, epochs=epochs, size=size):
        gradient *= min(1, clip / (np.linalg.norm(gradient) + 1e-6))
        gradient += decay * weights
        velocity = momentum * velocity + gradient
        weights -= lr * velocity
        losses.append(loss)
    return weights, np.mean(losses)


def _adam_by_hand(task, client, head, *, lr, betas, eps, decay, decoupled, epochs, size):
    """Train one client by Adam (Kingma and Ba) or AdamW (Loshchilov and Hutter), in float64."""
    weights = head.double().numpy().copy()
    first = np.zeros_like(weights)
    second = np.zeros_like(weights)
    batches = _gradients(task, client, weights, epochs=epochs, size=size)
    for step, (gradient, _) in enumerate(batches, 1):
        if decoupled:
            weights *= 1 - lr * decay
        else:
            gradient += decay * weights
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        unbiased = first / (1 - betas[0] ** step), second / (1 - betas[1] ** step)
        weights -= lr * unbiased[0] / (np.sqrt(unbiased[1]) + eps)
    return weights


def test_every_client_trains_as_by_hand(tiny):
    """Clients differ in batches and steps; momentum, decay and clipping are per client."""
    task, _ = tiny("head_tuning")
    ids = task.data.participating
    sizes = {len(task.data.train[k]) for k in ids}
    assert len({-(-n // 4) for n in sizes}) > 1, "some clients finish before others"
    given = {"lr": 0.5, "momentum": 0.9, "clip": 0.7, "epochs": 2}
    head, trained = _train(task, ids, **given, weight_decay=0.01, batch_size=4)
    for k, client in enumerate(ids):
        weights, loss = _by_hand(task, client, head, **given, decay=0.01, size=4)
        np.testing.assert_allclose(trained.params["head"][k].numpy(), weights, atol=1e-5)
        assert trained.loss[k] == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_every_client_trains_by_adam_as_by_hand(tiny, optimizer):
    task, _ = tiny("head_tuning")
    ids = task.data.participating
    given = {"lr": 0.05, "betas": [0.6, 0.8], "eps": 1e-3, "epochs": 2}
    head, trained = _train(
        task, ids, **given, optimizer=optimizer, weight_decay=0.3, batch_size=4, clip=None
    )
    for k, client in enumerate(ids):
        decoupled = optimizer == "adamw"
        weights = _adam_by_hand(task, client, head, **given, decay=0.3, decoupled=decoupled, size=4)
        np.testing.assert_allclose(trained.params["head"][k].numpy(), weights, atol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "rate"), [("constant", 0.3), ("exponential", 0.3 * 0.5**2), ("cosine", 0.15)]
)
def test_local_training_follows_the_schedule(tiny, schedule, rate):
    """One step in round 3 of 4 moves the weights by the round's learning rate."""
    task, _ = tiny("head_tuning")
    client = task.data.participating[0]
    given = {"schedule": schedule, "lr": 0.3, "decay": 0.5, "clip": None}
    size = len(task.data.train[client])
    head, trained = _train(
        task,
        [client],
        number=3,
        **given,
        schedule_rounds=4,
        weight_decay=0.0,
        epochs=1,
        batch_size=size,
    )
    weights = head.double().numpy()
    ((gradient, _),) = _gradients(task, client, weights, epochs=1, size=size, number=3)
    expected = weights - rate * gradient
    np.testing.assert_allclose(trained.params["head"][0].numpy(), expected, atol=1e-6)
    assert np.abs(rate * gradient).max() > 1e-3


def test_the_reported_loss_is_not_what_is_minimised(tiny):
    """On ragged batches, 3 times the cross-entropy is minimised; the cross-entropy is reported."""
    task, _ = tiny("head_tuning")
    ids = task.data.participating
    given = {"lr": 0.1, "momentum": 0.0, "clip": None, "epochs": 2, "batch_size": 4}

    def thrice(*args):
        return 3 * _loss(*args), {"reported_loss": _loss(*args)}

    _, expected = _train(task, ids, **given | {"lr": 0.3})
    _, actual = _train(task, ids, **given, loss=thrice)
    torch.testing.assert_close(actual.params, expected.params)
    assert actual.loss == pytest.approx(expected.loss, abs=1e-5)


def test_a_counter_that_was_not_given_is_named(tiny):
    task, _ = tiny("head_tuning")

    def counting(*args):
        return _loss(*args), {"seen": torch.ones_like(args[-1].labels)}

    line = r"head_tuning: .* its loss adds to 'seen', which train_locally"
    with pytest.raises(FedLoomError, match=line):
        _train(task, task.data.participating, batch_size=4, loss=counting)


def test_equal_batches_give_equal_bits(tiny):
    """Two clients have the same number of images; training them together changes not one bit."""
    task, _ = tiny("head_tuning")
    a, b = task.data.participating[:2]
    task.data.train[b] = task.data.train[b][:8]
    task.data.train[a] = task.data.train[a][:8]
    _, together = _train(task, [a, b])
    for k, client in enumerate((a, b)):
        _, alone = _train(task, [client])
        assert torch.equal(together.params["head"][k], alone.params["head"][0])


def test_only_what_is_named_is_trained(tiny):
    task, _ = tiny("head_tuning")
    ids = task.data.participating[:2]
    start = {"head": torch.zeros(2, 4, task.backbone.width), "extra": torch.ones(2, 3)}
    clients = cohort(task, ids, [{}, {}])

    def loss(task, params, *rest):  # of head and extra
        return _loss(task, params, *rest) + params["extra"].sum(1, keepdim=True)

    trained = train_locally(task.at(1), loss, {}, clients, params=start, train=("head",))
    assert trained.params["extra"] is not None
    assert torch.equal(trained.params["extra"], start["extra"])
    assert not torch.equal(trained.params["head"], start["head"])
    assert not start["head"].any(), "what it starts from is not touched"


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 3))
def test_every_epoch_sees_every_image_once(count, size, epochs):
    rows = np.arange(100, 100 + count)
    batches = list(shuffled_batches(rows, size, epochs, 0, 5, 7))
    per_epoch = -(-count // size)
    assert len(batches) == epochs * per_epoch
    for e in range(epochs):
        seen = np.concatenate(batches[e * per_epoch : (e + 1) * per_epoch])
        assert sorted(seen) == list(rows)


def test_ragged_batches_are_filled_with_the_clients_own_images(tiny):
    task, _ = tiny("fedvpt")
    long = task.data.train[1][:5]
    short = task.data.train[2][:2]
    batch = task.data.batch([long, short])
    assert set(batch.index[1]) <= set(short)
    *_, last = iterate_examples(task, [np.tile(long, 60), short])
    assert set(last.index[1]) == {short[0]}
    assert not last.mask[1].any()
    *_, last = iterate_examples(task, [np.tile(long, 60), short[:1]])
    assert set(last.index[1]) == {short[0]}


def test_batches_fill_their_limit_with_at_least_one_image_per_client(tiny):
    task = with_limits(tiny("fedvpt")[0], images=7, features=9)
    rows = [np.arange(5), np.arange(4)]
    for clients, features_only, widths in (
        (2, False, [3, 2]),
        (2, True, [3, 2]),  # parts have about equal sizes
        (8, False, [1] * 5),
        (10, True, [1] * 5),
    ):
        task = with_facts(task, features_only=features_only)
        found = list(iterate_examples(task, (rows * 5)[:clients]))
        assert [batch.index.shape for batch in found] == [(clients, width) for width in widths]
        seen = np.concatenate([batch.index[0][batch.mask[0].numpy()] for batch in found])
        assert seen.tolist() == [0, 1, 2, 3, 4]


def test_a_masked_infinity_does_no_harm(tiny):
    task, _ = tiny("head_tuning")

    def loss(task, params, received, clients, batch):
        values = _loss(task, params, received, clients, batch)
        return values.masked_fill(~batch.mask, torch.inf)

    ids = task.data.participating
    received = stack([{"params": {"head": torch.zeros(4, 16)}} for _ in ids])
    clients = cohort(task, ids, [{} for _ in ids])
    plain = train_locally(task.at(1), _loss, received, clients)
    masked = train_locally(task.at(1), loss, received, clients)
    assert torch.equal(plain.params["head"], masked.params["head"])


def test_a_parameter_that_the_loss_ignores_stays_as_it_is(tiny):
    task, _ = tiny("head_tuning")
    start = {"head": torch.zeros(1, 4, 16), "idle": torch.ones(1, 2)}
    clients = cohort(task, task.data.participating[:1], [{}])
    trained = train_locally(task.at(1), _loss, {}, clients, params=start)
    assert torch.equal(trained.params["idle"], start["idle"])


def test_stacking_refuses_plain_numbers_that_differ():
    assert stack([{"n": 1}, {"n": 1}]) == {"n": 1}
    with pytest.raises(ValueError, match="keep it as a tensor"):
        stack([{"n": 1}, {"n": 2}])


def test_only_participating_clients_are_sampled(tiny):
    task, hooks = tiny("fedvpt")
    drawn = [select_for_round(task.at(t), hooks, initial_state(task, hooks)) for t in range(40)]
    assert all(len(set(ids)) == 3 for ids in drawn)
    assert {k for ids in drawn for k in ids} == set(task.data.participating)
    assert drawn == [
        select_for_round(task.at(t), hooks, initial_state(task, hooks)) for t in range(40)
    ]


def test_counters_count_every_example_and_the_loss_sees_them(tiny):
    task, _ = tiny("head_tuning")
    ids = task.data.participating[:3]
    seen = []

    def loss(task, params, received, clients, batch):
        seen.append(params["counters"]["classes"].sum(1).tolist())
        one_hot = F.one_hot(batch.labels, task.num_classes)
        return _loss(task, params, received, clients, batch), {"classes": one_hot}

    head = torch.zeros(4, task.backbone.width)
    received = stack([{"params": {"head": head}} for _ in ids])
    clients = cohort(task, ids, [{} for _ in ids])
    start = {"classes": torch.zeros(3, task.num_classes, dtype=torch.int64)}
    trained = train_locally(task.at(1), loss, received, clients, counters=start)
    labels = [task.data.labels[torch.from_numpy(task.data.train[k])] for k in ids]
    once = torch.stack([mine.bincount(minlength=task.num_classes) for mine in labels])
    assert torch.equal(trained.counters["classes"], 2 * once), "two epochs"
    assert seen[:2] == [[0, 0, 0], [4, 4, 4]], "batches of four"
    assert trained.steps == [2 * -(-n // 4) for n in clients.num_examples]
    assert not start["classes"].any()


def test_the_global_test_is_of_the_servers_model(tiny):
    task, hooks = tiny("head_tuning")
    current, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    row = evaluate_globally(task.at(1), hooks, current)
    images = torch.from_numpy(np.concatenate(task.data.test))
    scores = task.data.tokens(None)[images] @ current.server["params"]["head"].T
    hits = int((scores.argmax(1) == task.data.labels[images]).sum())
    assert (row.num_correct, row.num_test) == (hits, len(images))
    assert row.client_id == SERVER_MODEL and not row.participating


def test_without_a_servers_model_the_global_test_is_of_the_clients_own(tiny):
    task, hooks = tiny("p_pt")
    current, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    row = evaluate_globally(task.at(1), hooks, current)
    task.data.test[:] = [np.concatenate(task.data.test)] * task.data.num_clients
    own = [r for r in evaluate(task.at(1), hooks, current) if r.participating]
    assert row.num_correct == sum(r.num_correct for r in own)
    assert row.num_test == sum(r.num_test for r in own)


def test_the_servers_model_has_uniform_priors_and_no_images(tiny):
    task, _ = tiny("head_tuning")
    model = cohort(task, [SERVER_MODEL], [{}])
    assert model.is_server_model and model.ids == (SERVER_MODEL,) and model.num_examples == (0,)
    assert model.priors.tolist() == [[0.25] * 4]
    assert not cohort(task, [1], [{}]).is_server_model


def test_prototypes_that_method_toml_does_not_ask_for_are_refused_by_name(tiny):
    task, _ = tiny("fedvpt")
    with pytest.raises(FedLoomError, match=r'^the method reads prototypes.*"prototypes" to ne'):
        _ = task.prototypes


def test_vectors_that_are_longer_than_the_limit_are_scaled_down_to_it():
    norms = torch.tensor([0.0, 0.5, 2.0, 8.0])
    factors = clip_factors(norms, 2.0)
    assert factors.tolist() == [1.0, 1.0, 1.0, 0.25]
    assert (clip_factors(norms, 2.0, epsilon=2.0) * (norms + 2)).max() <= 2.0
