"""Class priors: what a client adds to its logits, in training and at test, by hand in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedloom.toolbox as fl
from attacks import IDS, attacked_runs, heads
from changed_plugin import plugin_with
from fedloom.common.ids import BASE_CLASSES, OWN_IMAGES
from fedloom.contract.tiny import tiny_backbone, tiny_task
from fedloom.contract.tiny_run import upload
from fedloom.federated.cohorts import prepare_clients
from fedloom.federated.evaluate import evaluate
from fedloom.federated.evaluate_test_sets import evaluate_test_sets
from fedloom.federated.logit_offsets import adding_to_logits
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.hooks import loader, manifest
from fedloom.hooks.wrapper_rules import refused_wrappers
from refusals import refused

PLUGINS = manifest.discover_methods()
WRAPPER = PLUGINS["class_priors"]
CLASSES = 4
NOTHING = {"test": "none", "train": False}
IID = {"scheme": "iid", "clients": 6, "held_out": 0}
CLIENTS_ARRIVE = {"of": "clients", "at": [2], "keep": False}
CLASSES_ARRIVE = {"of": "classes", "at": [3, 5], "keep": False}


@pytest.fixture
def run(tmp_path):
    """Return make(method, partition, **options): a task and its hooks with class priors."""

    def make(method="head_tuning", partition=None, **options):
        plugin = PLUGINS[method]
        more = {"backbone": tiny_backbone(plugin.family)}
        if partition is not None:
            more["partition"] = partition
        task = tiny_task(plugin, tmp_path, (WRAPPER,), **more)
        vars(task.wrappers["class_priors"]).update(options)
        return task, loader.load_hooks(plugin, wrappers=[WRAPPER])

    return make


def shares_by_hand(task, client):
    """Return the share of every class [C] in a client's training images, in float64."""
    labels = task.data.labels[task.data.train[client]].tolist()
    return np.array([labels.count(c) / len(labels) for c in range(CLASSES)])


def softmax_by_hand(logits):
    """Return the probabilities of logits [n, C]."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def features_by_hand(task, rows):
    """Return the features [n, d] of these images, in float64."""
    return task.data.tokens(None)[rows].double().numpy()


def one_full_step(task):
    """Return the task with one plain gradient step on all images of a client, of rate 0.5."""
    training = replace(
        task.training, optimizer="sgd", lr=0.5, momentum=0.0, weight_decay=0.0, clip=None
    )
    return replace(task, training=replace(training, epochs=1, batch_size=100))


def after_two_rounds(task, hooks):
    """Return the losses of training, and the rows of an evaluation, after two rounds."""
    state = initial_state(task, hooks)
    losses = []
    for number in (1, 2):
        state, row = train_round(task.at(number), hooks, state)
        losses.append(row.train_loss)
    return losses, evaluate(task.at(2), hooks, state, global_test=True)


# ---- at test -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tau", "floor"), [(1.0, 1e-4), (0.5, 0.05)])
def test_clients_answer_with_the_log_of_their_shares(run, tau, floor):
    """Held-out clients do so too, by their own training images; the server's model does not."""
    task, hooks = run(train=False, tau=tau, floor=floor)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    head = state.server["params"]["head"].double().numpy()
    *rows, server = evaluate(task.at(1), hooks, state, global_test=True)
    assert any(not row.participating for row in rows)

    for row in [*rows, server]:
        images = np.sort(np.concatenate(task.data.test))
        added = np.zeros(CLASSES)
        if row is not server:
            images = task.data.test[row.client_id]
            added = tau * np.log(np.maximum(shares_by_hand(task, row.client_id), floor))
        labels = task.data.labels[images].numpy()
        chances = softmax_by_hand(features_by_hand(task, images) @ head.T + added)
        loss = -np.log(chances[np.arange(len(labels)), labels]).mean()
        assert row.loss == pytest.approx(loss, rel=1e-5)
        assert row.num_correct == (chances.argmax(1) == labels).sum()


def test_equal_shares_change_no_prediction_and_no_bit_of_a_loss(run):
    """Only the sum over the global test has another order, and so may differ in its last bit."""
    task, hooks = run()
    even = torch.full_like(task.data.priors, 1 / CLASSES)
    task = replace(task, data=replace(task.data, priors=even))
    plain = loader.load_hooks(PLUGINS["head_tuning"])
    own = after_two_rounds(task, hooks)
    without = after_two_rounds(task, plain)
    assert own[0] == without[0]
    assert own[1][:-1] == without[1][:-1]
    assert own[1][-1].num_correct == without[1][-1].num_correct
    assert own[1][-1].loss == pytest.approx(without[1][-1].loss, rel=1e-6)


def test_nobody_asks_what_the_servers_model_adds(run):
    task, hooks = run()
    _, clients = prepare_clients(task.at(1), hooks, initial_state(task, hooks), [fl.SERVER_MODEL])
    assert clients.logit_offsets is None


def test_without_a_servers_model_the_global_test_knows_no_shares(run):
    task, hooks = run("singleset_head", train=False)
    plain = loader.load_hooks(PLUGINS["singleset_head"])
    own, without = (after_two_rounds(task, each)[1] for each in (hooks, plain))
    assert own[-1] == without[-1]
    assert own[:-1] != without[:-1]


def test_everyone_answers_everyones_images_with_its_own_shares(run):
    """The table of test sets has both: the client's own images, and those of all clients."""
    task, hooks = run("promptfl", train=False)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    plain = loader.load_hooks(PLUGINS["promptfl"])
    images = np.sort(np.concatenate(task.data.test))
    rows = evaluate_test_sets(task.at(1), hooks, state)
    on_base_classes = [each.evaluation for each in rows if each.test_set == BASE_CLASSES]
    for row in on_base_classes:
        received, clients = prepare_clients(task.at(1), plain, state, [row.client_id])
        batch = task.data.batch([images])
        logits = plain.predict(task=task.at(1), received=received, clients=clients, batch=batch)
        shares = np.maximum(shares_by_hand(task, row.client_id), 1e-4)
        chances = softmax_by_hand(logits[0].detach().double().numpy() + np.log(shares))
        labels = task.data.labels[images].numpy()
        loss = -np.log(chances[np.arange(len(labels)), labels]).mean()
        assert row.loss == pytest.approx(loss, rel=1e-5)
    own = {
        each.evaluation.client_id: each.evaluation.loss
        for each in rows
        if each.test_set == OWN_IMAGES
    }
    answered = evaluate(task.at(1), hooks, state, sorted(own))
    assert {row.client_id: row.loss for row in answered} == pytest.approx(own, rel=1e-5)


def test_shares_over_the_floor_need_not_be_divided_by_their_sum():
    """Dividing by the sum shifts all logits of a client alike, which changes no softmax."""
    shares = np.maximum([0.5, 0.5, 0.0, 0.0], 0.05)
    logits = np.array([[0.3, -1.0, 2.0, 0.1]])
    divided = softmax_by_hand(logits + np.log(shares / shares.sum()))
    np.testing.assert_allclose(softmax_by_hand(logits + np.log(shares)), divided, rtol=1e-12)


# ---- in training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["shares", "fedlc"])
def test_a_training_step_is_that_of_the_shifted_logits(run, form):
    """From a head of zeros, the gradient is the mean of (softmax(offsets) - y) x^T."""
    task, hooks = run(form=form, tau=0.7, floor=0.02)
    sent = heads(one_full_step(task), hooks)
    for client in IDS:
        rows = task.data.train[client]
        shares = np.maximum(shares_by_hand(task, client), 0.02)
        added = 0.7 * np.log(shares)
        if form == "fedlc":
            added = -0.7 * (shares * len(rows)) ** -0.25
        targets = np.eye(CLASSES)[task.data.labels[rows].numpy()]
        error = softmax_by_hand(np.broadcast_to(added, targets.shape)) - targets
        head = -0.5 * error.T @ features_by_hand(task, rows) / len(rows)
        np.testing.assert_allclose(sent[client].double().numpy(), head, atol=1e-6)


@pytest.mark.parametrize("train", [True, False])
def test_training_knows_the_shares_only_if_asked(run, train):
    task, hooks = run(test="none", train=train)
    plain = heads(task, loader.load_hooks(PLUGINS["head_tuning"]))
    own = heads(task, hooks)
    assert all(torch.equal(plain[k], own[k]) is not train for k in IDS)


def test_clients_that_finish_early_leave_the_others_their_own_shares(run):
    """Clients have 10 to 16 images, hence other numbers of steps; each trains as it does alone."""
    task, hooks = run()
    start = initial_state(task, hooks)
    together = heads(task, hooks)
    for client in IDS:
        _, (alone,) = upload(task, hooks, 1, start, [client])
        head = alone.payload["params"]["head"]
        torch.testing.assert_close(together[client], head, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["fedrep", "per_fedavg"])
def test_a_client_that_personalises_trains_with_its_shares_too(run, name):
    """All clients come from the same rounds, which knew no shares.

    FedRep personalises by `train_locally`, and Per-FedAvg by gradients of its own.
    """
    task, hooks = run(name, test="none")
    plain = loader.load_hooks(PLUGINS[name])
    state, _ = train_round(task.at(1), plain, initial_state(task, plain))
    own, without = (evaluate(task.at(1), each, state) for each in (hooks, plain))
    same = [row == other for row, other in zip(own, without, strict=True)]
    assert same == [not row.personalized for row in own]


def test_losses_that_a_client_computes_beside_its_training_know_the_shares(run):
    """Zero-Shot CLIP reports the loss of clients that train nothing; planning would refuse it."""
    task, hooks = run("zero_shot_clip")
    state = initial_state(task, hooks)
    _, row = train_round(task.at(1), hooks, state)
    for update in row.updates:
        rows = task.data.train[update.client_id]
        received, clients = prepare_clients(task.at(1), hooks, state, [update.client_id])
        batch = task.data.batch([rows])
        logits = hooks.predict(task=task.at(1), received=received, clients=clients, batch=batch)
        shares = np.maximum(shares_by_hand(task, update.client_id), 1e-4)
        chances = softmax_by_hand(logits[0].detach().double().numpy() + np.log(shares))
        loss = -np.log(chances[np.arange(len(rows)), task.data.labels[rows].numpy()]).mean()
        assert update.metrics["train_loss"] == pytest.approx(loss, rel=1e-4)


def test_attackers_train_with_the_shares_of_their_false_labels(tmp_path):
    task, hooks = attacked_runs(tmp_path)("label_flip", "class_priors")
    attacking = hooks.attackers(task=task)
    data = hooks.training_data(task=task)
    offsets = hooks.training_offsets(
        task=replace(task, data=data), clients=cohort(replace(task, data=data), IDS, [{}] * 5)
    )
    for k, client in enumerate(IDS):
        labels = task.data.labels[task.data.train[client]].numpy()
        if client in attacking:
            labels = CLASSES - 1 - labels
        shares = np.maximum(np.bincount(labels, minlength=CLASSES) / len(labels), 1e-4)
        wanted = np.log(shares / shares.max())
        np.testing.assert_allclose(offsets[k].numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("form", ["shares", "fedlc"])
def test_on_a_stream_all_images_that_have_arrived_count(run, form):
    partition = IID | {"arrivals": CLASSES_ARRIVE}
    task, hooks = run(partition=partition, form=form)
    seen = {k: set() for k in range(6)}
    for number in (1, 3, 5):
        now = task.at(number)
        clients = cohort(now, [*range(6)], [{}] * 6)
        offsets = hooks.training_offsets(task=now, clients=clients).numpy()
        for k in range(6):
            seen[k] |= set(now.data.train[k].tolist())
            counts = np.bincount(task.data.labels[sorted(seen[k])].numpy(), minlength=CLASSES)
            counts = np.maximum(counts, 1e-4 * counts.sum())
            wanted = np.log(counts)
            if form == "fedlc":
                wanted = -(counts**-0.25)
            np.testing.assert_allclose(offsets[k], wanted - wanted.max(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["shares", "fedlc"])
def test_a_client_without_images_adds_nothing(run, form):
    partition = IID | {"arrivals": CLIENTS_ARRIVE}
    task, hooks = run(partition=partition, form=form)
    now = task.at(1)
    absent = [k for k, rows in enumerate(now.data.train) if not len(rows)]
    clients = cohort(now, absent, [{}] * len(absent))
    assert len(absent) == 3
    assert not hooks.training_offsets(task=now, clients=clients).any()
    assert not hooks.answer_offsets(task=now, clients=clients).any()


def test_the_loss_of_a_guess_is_one_that_knows_the_shares(run):
    """With a floor of almost 0, it is the entropy of the shares."""
    task, hooks = run(partition=IID, floor=1e-9)
    _, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    entropies = []
    for update in row.updates:
        shares = shares_by_hand(task, update.client_id)
        shares = shares[shares > 0]
        entropies.append(-(shares * np.log(shares)).sum())
    assert row.guessing_loss == pytest.approx(np.mean(entropies), rel=1e-5)


# ---- with neither, every number is the method's own ----------------------------------------------


SMALL = {"fedic": {"server_steps": 3}, "creff": {"matching_steps": 3, "retraining_epochs": 5}}
FEW = ("head_tuning", "pep_fedpt", "fedrep")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FEW else pytest.mark.slow)
        for name, plugin in PLUGINS.items()
        if plugin.kind == "method"
    ],
)
def test_without_both_every_number_is_the_methods_own_to_the_bit(run, name):
    task, hooks = run(name, **NOTHING)
    vars(task.options).update(SMALL.get(name, {}))
    assert after_two_rounds(task, hooks) == after_two_rounds(task, loader.load_hooks(PLUGINS[name]))


# ---- where the loss looks them up ----------------------------------------------------------------


def test_cross_entropy_adds_the_offsets_inside_of_their_block_alone():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, CLASSES, generator=generator)
    offsets = torch.randn(2, CLASSES, generator=generator)
    labels = torch.tensor([[0, 1, 2], [3, 3, 1]])
    before = fl.cross_entropy(logits, labels)
    with adding_to_logits(offsets):
        inside = fl.cross_entropy(logits, labels)
        with adding_to_logits(None):
            assert torch.equal(fl.cross_entropy(logits, labels), before)
    assert torch.equal(fl.cross_entropy(logits, labels), before)

    # a loss among a client's own classes takes none of them
    every = torch.ones(2, CLASSES, dtype=torch.bool)
    with adding_to_logits(offsets):
        assert torch.equal(fl.cross_entropy_among(logits, labels, every), before)

    for k in range(2):
        shifted = logits[k].double().numpy() + offsets[k].double().numpy()
        wanted = -np.log(softmax_by_hand(shifted)[range(3), labels[k]])
        np.testing.assert_allclose(inside[k].numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 3, CLASSES), (2, 3, CLASSES + 1), (2, CLASSES)])
def test_logits_of_other_clients_or_classes_are_told(shape):
    labels = torch.zeros(shape[:-1], dtype=torch.int64)
    with (
        adding_to_logits(torch.zeros(2, CLASSES)),
        refused("cross_entropy", "[2, images, 4]", list(shape), "takes_logit_offsets"),
    ):
        fl.cross_entropy(torch.zeros(shape), labels)


def test_a_loss_of_its_own_is_told_to_declare_it(tmp_path):
    old = 'fl.cross_entropy(fl.linear(batch.features, params["head"]), batch.labels)'
    new = 'fl.linear(batch.features, params["head"]).square().mean(-1)'
    method = plugin_with(tmp_path, old, new)
    task = tiny_task(method, tmp_path, (WRAPPER,))
    hooks = loader.load_hooks(method, wrappers=[WRAPPER])
    with refused("head_tuning", "cross_entropy", "takes_logit_offsets"):
        train_round(task.at(1), hooks, initial_state(task, hooks))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, plugin in PLUGINS.items() if plugin.kind == "method"])
def test_every_method_takes_the_shares_or_is_refused(run, name):
    """The runtime checks that the loss of a method which is not refused looks the shares up."""
    method = PLUGINS[name]
    if refused_wrappers(method, method.complete_options({}), [WRAPPER]) is not None:
        assert not method.trained or method.takes_logit_offsets is not True
        return
    task, hooks = run(name)
    vars(task.options).update(SMALL.get(name, {}))
    plain = loader.load_hooks(method)
    assert after_two_rounds(task, hooks)[0] != after_two_rounds(task, plain)[0]
