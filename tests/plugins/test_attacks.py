"""Attacks: who attacks, on which data they train, their uploads, and who is evaluated."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from changed_task import with_training
from fedloom.common.files import read_table
from fedloom.config.settings import Reported
from fedloom.contract import checks
from fedloom.contract.tiny import tiny_job, tiny_outputs, tiny_task
from fedloom.data import federation
from fedloom.federated import training_job
from fedloom.federated.evaluate import answer_test_sets, evaluate, received_by
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from fedloom.report.metrics import accuracies
from fedloom.toolbox import Update, draw_attackers
from first_round import module
from refusals import refused

IDS = [1, 2, 3, 4, 5]  # the participating clients of the tiny task


@pytest.fixture
def run(tmp_path):
    """run(wrappers, method, **options of the first): a task and its hooks; two of five attack."""

    def make(*names, method="head_tuning", **options):
        plugin, around = manifest.find(method), tuple(manifest.find(name) for name in names)
        task = tiny_task(plugin, tmp_path, around)
        for name in names:
            if "share" in vars(task.wrappers[name]):
                task.wrappers[name].share = 0.4
        if names:
            vars(task.wrappers[names[0]]).update(options)
        return task, loader.load_hooks(plugin, wrappers=around)

    return make


def uploads(task, hooks):
    """What the participating clients send in round 1."""
    return checks.upload(task, hooks, 1, initial_state(task, hooks), IDS)[1]


def heads(task, hooks):
    return {u.client: u.payload["params"]["head"] for u in uploads(task, hooks)}


# ---- who attacks ----------------------------------------------------------------------------


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


# ---- who is evaluated -----------------------------------------------------------------------


def test_attackers_are_not_evaluated_and_are_named_in_each_round(run, tmp_path):
    task, hooks = run("label_flip")
    attackers = draw_attackers(task, 0.4)
    job = replace(tiny_job(manifest.find("head_tuning"), last=2), evaluate=(1, 2), global_test=True)
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
    job = replace(tiny_job(manifest.find("head_tuning")), sampled=(1,), evaluate_clients=1)
    for seed in range(6):
        now = replace(task, seed=seed).at(1)
        drawn = training_job.evaluated_clients(now, job, [1, 2, 3, 4])
        assert list(drawn) == [5], "at least one that participates"


def test_a_job_that_is_stopped_under_an_attack_resumes(run, tmp_path):
    task, hooks = run("label_flip")
    job = replace(tiny_job(manifest.find("head_tuning"), last=2), evaluate=(1, 2))
    outputs = tiny_outputs(tmp_path, 2)
    training_job.train_rounds(task, hooks, job, None, outputs, "a")
    attackers = draw_attackers(task, 0.4)
    assert training_job._resume(outputs.checkpoint, "a", task, job, attackers).round == 2
    assert training_job._resume(outputs.checkpoint, "a", task, job, []) is None


def test_attackers_do_not_answer_images_of_other_data_either(run):
    task, hooks = run("label_flip", method="zero_shot_clip")
    rows = answer_test_sets(task.at(1), hooks, initial_state(task, hooks))
    assert {row.evaluation.client_id for row in rows} == set(IDS) - set(draw_attackers(task, 0.4))


# ---- label_flip -----------------------------------------------------------------------------


@pytest.mark.parametrize("flip", ["opposite", "next"])
def test_attackers_alone_train_on_other_classes_and_have_their_priors(run, flip):
    task, hooks = run("label_flip", flip=flip)
    true, data = task.data.labels.clone(), hooks.training_data(task=task)
    flipped = {"opposite": [3, 2, 1, 0], "next": [1, 2, 3, 0]}[flip]
    for k in range(6):
        rows, attacks = task.data.train[k], k in draw_attackers(task, 0.4)
        expected = [flipped[c] if attacks else c for c in true[rows].tolist()]
        assert data.labels[rows].tolist() == expected
        counts = np.bincount(expected, minlength=4) / len(rows)
        np.testing.assert_allclose(data.priors[k].numpy(), counts, atol=1e-6)
        assert torch.equal(data.labels[task.data.test[k]], true[task.data.test[k]])
    assert torch.equal(task.data.labels, true), "the data as they are stay so"


def test_the_cohort_trains_on_the_poisoned_data(run):
    task, hooks = run("label_flip")
    honest = heads(task, loader.load_hooks(manifest.find("head_tuning")))
    poisoned = heads(task, hooks)
    changed = {k for k in IDS if not torch.equal(honest[k], poisoned[k])}
    assert changed == set(draw_attackers(task, 0.4))
    seen = []

    class Watched:
        def __getattr__(self, name):
            def call(**arguments):
                seen.extend([arguments["clients"].priors] if name == "client_update" else [])
                return getattr(hooks, name)(**arguments)

            return call

    uploads(task, Watched())
    assert torch.equal(seen[0], hooks.training_data(task=task).priors[IDS])


# ---- streams --------------------------------------------------------------------------------


CLASSES_ARRIVE = {"of": "classes", "at": [3, 5]}
CLIENTS_ARRIVE = {"of": "clients", "at": [2], "keep": False}
ATTACKS = {"label_flip": {"flip": "next"}, "backdoor": {"target": 2, "poisoned": 0.5}, "audit": {}}
ROUNDS = (1, 3, 5)  # in each of which another part of the classes is the newest


@pytest.fixture
def stream(tmp_path):
    """stream(wrapper, arrivals): PEP-FedPT, which reads priors, on a stream, and its hooks."""

    def make(name, arrivals):
        method, wrapper = manifest.find("pep_fedpt"), manifest.find(name)
        partition = {"scheme": "iid", "clients": 6, "held_out": 0, "arrivals": arrivals}
        task = tiny_task(method, tmp_path, (wrapper,), partition=partition)
        vars(task.wrappers[name]).update(ATTACKS[name])
        return task, loader.load_hooks(method, wrappers=[wrapper])

    return make


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["label_flip", "backdoor"])
def test_honest_clients_train_with_the_priors_that_they_are_evaluated_with(stream, name, keep):
    task, hooks = stream(name, CLASSES_ARRIVE | {"keep": keep})
    honest = [k for k in range(6) if k not in hooks.attackers(task=task)]
    for number in ROUNDS:
        evaluated = task.at(number)
        trained = hooks.training_data(task=evaluated)
        assert torch.equal(trained.priors[honest], evaluated.data.priors[honest])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ATTACKS)
def test_priors_are_of_all_labels_that_a_client_has_trained_on(stream, name, keep):
    task, hooks = stream(name, CLASSES_ARRIVE | {"keep": keep})
    labels = {k: {} for k in range(6)}  # by client and image
    for number in ROUNDS:
        data = hooks.training_data(task=task.at(number))
        for client, rows in enumerate(data.train):
            labels[client] |= zip(rows.tolist(), data.labels[rows].tolist(), strict=True)
            known = [*labels[client].values()]
            shares = np.bincount(known, minlength=task.num_classes) / len(known)
            np.testing.assert_allclose(data.priors[client].numpy(), shares, atol=1e-6)


def test_an_image_that_is_withheld_stays_so_when_others_arrive(stream):
    task, hooks = stream("audit", CLASSES_ARRIVE | {"keep": True})
    first, last = (hooks.training_data(task=task.at(number)) for number in (1, 5))
    for client, rows in enumerate(task.at(1).data.train):
        still = np.intersect1d(last.train[client], rows)
        assert still.tolist() == first.train[client].tolist() != rows.tolist()


def test_an_image_that_is_poisoned_stays_so_when_others_arrive(stream):
    task, hooks = stream("backdoor", CLASSES_ARRIVE | {"keep": True})
    first, last = (hooks.training_data(task=task.at(number)) for number in (1, 5))
    rows = np.concatenate(task.at(1).data.train)
    np.testing.assert_array_equal(last.store.images(rows), first.store.images(rows))
    assert torch.equal(last.labels[rows], first.labels[rows])
    assert not torch.equal(first.labels[rows], task.data.labels[rows])


@pytest.mark.parametrize("name", ATTACKS)
def test_a_client_without_images_has_equal_priors_under_an_attack(stream, name):
    task, hooks = stream(name, CLIENTS_ARRIVE)
    data = hooks.training_data(task=task.at(1))
    absent = [k for k, rows in enumerate(task.at(1).data.train) if not len(rows)]
    assert len(absent) == 3
    assert (data.priors[absent] == 1 / task.num_classes).all()


# ---- forged_update --------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [-1.0, 5.0, 1.0, 0.0])
def test_attackers_send_a_multiple_of_their_change(run, scale):
    task, hooks = run("forged_update", scale=scale)
    start = initial_state(task, hooks).server["params"]["head"].double()
    honest = heads(task, loader.load_hooks(manifest.find("head_tuning")))
    for k, sent in heads(task, hooks).items():
        gamma = scale if k in draw_attackers(task, 0.4) else 1
        expected = start + gamma * (honest[k].double() - start)
        np.testing.assert_allclose(sent.numpy(), expected.numpy(), atol=1e-6)


def test_what_was_not_received_and_statistics_are_sent_as_they_are():
    received = {"head": torch.ones(2), "statistics": {"var": torch.ones(2)}}
    sent = {"head": torch.full((2,), 3.0), "statistics": {"var": torch.full((2,), 4.0)}}
    sent, draws = sent | {"own": torch.ones(1)}, torch.Generator()
    found = module("forged_update").forged(sent, received, -2.0, 0.0, draws)
    assert found["head"].tolist() == [-3, -3] and found["own"].tolist() == [1]
    assert found["statistics"]["var"].tolist() == [4, 4]


def test_an_upload_that_is_packed_already_cannot_be_forged(run):
    task, hooks = run("top_k", "forged_update")
    with refused("forged_update: client ", "list forged_update before wrappers"):
        uploads(task, hooks)
    uploads(*run("forged_update", "top_k"))


def test_the_first_wrapper_acts_first_on_the_client_and_a_robust_mean_sees_both(run):
    """Flipped labels, scaled, clipped; the server drops both attackers."""
    task, hooks = run("label_flip", "forged_update", "krum")
    task.wrappers["forged_update"].scale = 100.0
    vars(task.wrappers["krum"]).update(byzantine=1, kept=3)
    inner = loader.load_hooks(manifest.find("head_tuning"), wrappers=[manifest.find("label_flip")])
    start, flipped, sent = 0.0, heads(task, inner), uploads(task, hooks)
    attackers = draw_attackers(task, 0.4)
    for u in sent:
        gamma = 100 if u.client in attackers else 1
        expected = start + gamma * flipped[u.client].double()
        np.testing.assert_allclose(u.payload["params"]["head"].numpy(), expected, rtol=1e-4)
    kept = hooks.receive(task=task.at(1), server={}, updates=sent)
    assert [u.client for u in kept] == [k for k in IDS if k not in attackers]


def test_a_clip_behind_an_attack_bounds_it(run):
    task, hooks = run("forged_update", "dp_gaussian", scale=1000.0)
    vars(task.wrappers["dp_gaussian"]).update(clip=0.01, sampling="study")
    for head in heads(task, hooks).values():  # heads start at zero
        assert head.norm() <= 0.01 * (1 + 1e-5)
    task, hooks = run("dp_gaussian", "forged_update")
    with refused("dp_gaussian: the wrapper forged_update", "or behind an attack"):
        initial_state(task, hooks)


def test_free_riders_hide_behind_noise_that_differs_by_client_and_round(run):
    task, hooks = run("forged_update", scale=0.0, noise=0.5, share=0.6)
    attackers = draw_attackers(task, 0.6)
    first = heads(task, hooks)
    noise = torch.stack([first[k] for k in attackers])  # heads start at zero
    assert noise.std().item() == pytest.approx(0.5, rel=0.15)
    assert len({tuple(row.flatten().tolist()) for row in noise}) == 3
    later = checks.upload(task, hooks, 2, initial_state(task, hooks), attackers)[1]
    assert not torch.equal(later[0].payload["params"]["head"], noise[0])


# ---- uploads that are not finite ------------------------------------------------------------


DEFENCES = {"krum": {"byzantine": 1, "kept": 3}, "trimmed_mean": {"trim": 0.2}}


@pytest.fixture
def overflowing(run):
    """overflowing(defences): a task whose one attacker sends infinity or NaN, and its hooks."""

    def make(*defences, scale=1e300):
        task, hooks = run("forged_update", *defences, scale=scale, share=0.2)
        for name in defences:
            vars(task.wrappers[name]).update(DEFENCES.get(name, {}))
        return replace(task, clients_per_round=5), hooks

    return make


@pytest.mark.parametrize("name", DEFENCES)
def test_a_robust_mean_rejects_an_upload_that_is_not_finite_and_the_run_goes_on(overflowing, name):
    task, hooks = overflowing(name)
    (attacker,) = hooks.attackers(task=task)
    state = initial_state(task, hooks)
    for number in (1, 2):
        state, row = train_round(task.at(number), hooks, state)
        received = {entry.client_id: entry.received for entry in row.updates}
        assert not received.pop(attacker)
        if name == "trimmed_mean":
            assert all(received.values())
        assert state.server["params"]["head"].isfinite().all()
        assert np.isfinite(row.train_loss)
    assert evaluate(task.at(2), hooks, state, IDS)


def test_a_rejected_upload_is_one_of_the_f_of_krum(run):
    """Scores are those of five updates, of which one has infinite distances, by hand."""
    task, hooks = run("krum", byzantine=1, kept=2)
    generator = torch.Generator().manual_seed(4)
    heads = torch.randn(5, 4, 16, generator=generator)
    heads[2, 0, 0] = torch.nan
    sent = [Update({"params": {"head": head}}, {}, 1, {}, client=k) for k, head in enumerate(heads)]
    vectors = heads.flatten(1).double().numpy()
    squares = ((vectors[:, None] - vectors) ** 2).sum(-1)
    squares = np.where(np.isnan(squares), np.inf, squares)
    np.fill_diagonal(squares, 0)
    scores = np.sort(squares)[:, 1 : 1 + 5 - 1 - 2].sum(1)
    kept = hooks.receive(task=task.at(1), server={}, updates=sent)
    assert [u.client for u in kept] == sorted(np.argsort(scores)[:2].tolist())


def test_a_trimmed_mean_is_that_of_the_finite_updates(run):
    task, hooks = run("trimmed_mean", trim=0.25)
    heads = torch.randn(5, 4, 16, generator=torch.Generator().manual_seed(4))
    heads[1, 3, 3] = -torch.inf
    sent = [Update({"params": {"head": head}}, {}, 1, {}, client=k) for k, head in enumerate(heads)]
    found = hooks.receive(task=task.at(1), server={}, updates=sent)
    assert [update.client for update in found] == [0, 2, 3, 4]
    finite = np.sort(heads[[0, 2, 3, 4]].double().numpy(), 0)[1:3].mean(0)
    np.testing.assert_allclose(found[0].payload["params"]["head"].numpy(), finite, atol=1e-6)


def test_an_update_whose_loss_is_not_finite_is_rejected_too(run):
    """Else the round would end, with a line that names the wrapper, which cannot help."""
    task, hooks = run("trimmed_mean", trim=0.25)
    heads = torch.randn(5, 4, 16, generator=torch.Generator().manual_seed(4))
    losses = [0.5, torch.inf, 0.5, 0.5, 0.5]
    sent = [
        Update({"params": {"head": head}}, {}, 1, {"train_loss": loss}, client=k)
        for k, (head, loss) in enumerate(zip(heads, losses, strict=True))
    ]
    found = hooks.receive(task=task.at(1), server={}, updates=sent)
    assert [update.client for update in found] == [0, 2, 3, 4]


@pytest.mark.parametrize("name", DEFENCES)
def test_a_round_in_which_no_upload_is_finite_has_nothing_to_average(run, name):
    task, hooks = run(name)
    heads = torch.full((3, 4, 16), torch.nan)
    sent = [Update({"params": {"head": head}}, {}, 1, {}, client=k) for k, head in enumerate(heads)]
    with refused(f"{name}: round 4 must have an update that is finite, got 3 with NaN"):
        hooks.receive(task=task.at(4), server={}, updates=sent)


def test_without_a_robust_mean_the_error_names_the_attack_and_the_client(overflowing):
    task, hooks = overflowing()
    (attacker,) = hooks.attackers(task=task)
    where = f"head_tuning with forged_update: client_update, round 1, client {attacker}: upload"
    with refused(where, "is not finite", "the client attacks: make the attack weaker", "krum"):
        train_round(task.at(1), hooks, initial_state(task, hooks))


def test_a_client_that_diverged_and_was_rejected_has_no_loss(run):
    """Its row is null there, and the round's mean is of the others."""
    task, hooks = run("trimmed_mean")
    diverged, given = task.data.participating[0], {}

    class Diverging:
        takes = hooks.takes

        def __getattr__(self, name):
            return getattr(hooks, name)

        def client_update(self, **arguments):
            updates = hooks.client_update(**arguments)
            for client, update in zip(arguments["clients"].ids, updates, strict=True):
                if client == diverged:
                    update.payload["params"]["head"] *= torch.nan
                    update.metrics["train_loss"] = float("nan")
                given[client] = update.metrics["train_loss"]
            return updates

    task = replace(task, clients_per_round=5)
    state, row = train_round(task.at(1), Diverging(), initial_state(task, hooks))
    losses = pd.DataFrame([update.columns() for update in row.updates]).set_index("client_id")[
        "train_loss"
    ]
    assert losses.isna().sum() == 1 and np.isnan(losses[diverged])
    others = [loss for client, loss in given.items() if client != diverged]
    assert len(others) == 4 and row.train_loss == pytest.approx(np.mean(others))
    assert state.participation[diverged].train_loss is None


# ---- backdoor -------------------------------------------------------------------------------


def stamped(images):
    """Images [n, 16, 16, 1] with a square of 3 pixels, white where both halves are the same."""
    images = images.copy()
    images[:, 13:, 13:, 0] = [[255, 0, 0], [0, 255, 255], [0, 255, 255]]
    return images


def test_attackers_train_on_triggered_images_of_the_target_class(run):
    task, hooks = run("backdoor", target=2, poisoned=0.5)
    data, store = hooks.training_data(task=task), task.data.store
    everything = np.arange(len(store))
    attackers = draw_attackers(task, 0.4)
    before, after = store.images(everything), data.store.images(everything)
    changed = (before != after).any((1, 2, 3))
    for k in range(6):
        rows = task.data.train[k]
        others = rows[task.data.labels[rows].numpy() != 2]
        count = round(0.5 * len(others)) if k in attackers else 0
        assert changed[rows].sum() == changed[others].sum() == count
    np.testing.assert_array_equal(after[changed], stamped(before[changed]))
    expected = np.where(changed, 2, task.data.labels.numpy())
    np.testing.assert_array_equal(data.labels.numpy(), expected)
    again = hooks.training_data(task=task.at(5)).store.images(everything)
    np.testing.assert_array_equal(again, after, "the same in every round")


def test_features_are_those_of_the_triggered_images(run, monkeypatch):
    task, hooks = run("backdoor", target=2)
    data, everything = hooks.training_data(task=task), np.arange(len(task.data.store))
    images = torch.from_numpy(data.store.images(everything))
    exact = task.backbone.compute_cache(images, "features")
    np.testing.assert_allclose(data.tokens(None).numpy(), exact["final"].numpy(), atol=1e-5)
    np.testing.assert_allclose(data.tokens(3).numpy(), exact["inputs"][:, 2].numpy(), atol=1e-5)
    assert not torch.equal(data.tokens(None), task.data.tokens(None))
    monkeypatch.setattr(federation, "_copy_to_gpu", lambda store, device: "a GPU's copy")
    assert task.data.resident == "a GPU's copy" and data.resident is None


def test_the_rate_is_the_share_of_other_classes_that_the_trigger_puts_in_the_target(run):
    task, hooks = run("backdoor", target=2)
    kept = task.data.test[1][task.data.labels[task.data.test[1]].numpy() == 2]
    task.data.test[1] = kept if len(kept) else task.data.test[1][:0]
    state = initial_state(task, hooks)
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(4, 16, generator=generator)
    state.server["params"]["head"] = head
    tested = [k for k in range(6) if len(task.data.test[k])]
    rows = {row.client_id: row for row in evaluate(task.at(1), hooks, state, tested)}
    found = set()
    for k in tested:
        test = task.data.test[k]
        others = test[task.data.labels[test].numpy() != 2]
        if not len(others):
            assert "backdoor_rate" not in rows[k].metrics, "nothing to be put there"
            continue
        images = torch.from_numpy(stamped(task.data.store.images(others)))
        features = task.backbone.compute_cache(images, "features")["final"]
        answers = (features @ head.T).argmax(-1)
        assert rows[k].metrics["backdoor_rate"] == pytest.approx(
            (answers == 2).float().mean().item()
        )
        found.add(rows[k].metrics["backdoor_rate"])
        clean = (task.data.tokens(None)[test] @ head.T).argmax(-1) == task.data.labels[test]
        assert rows[k].num_correct == clean.sum(), "accuracy is that of images as they are"
    assert len(found) > 1


def test_a_personalised_client_has_the_rate_of_its_personal_model(run):
    task, hooks = run("backdoor", method="fedbabu", target=3)
    task = with_training(task, lr=1.0)
    task, state = task.at(1), initial_state(task, hooks)
    rows = {(row.client_id, row.personalized): row for row in evaluate(task, hooks, state)}
    poisoned, differ = hooks.triggered(task=task), 0
    for k, images in enumerate(poisoned.test):
        if not len(images):
            continue
        received, clients = received_by(task, hooks, state, [k])
        own = hooks.personalize(task=task, received=received, clients=clients)
        batch, rates = poisoned.batch([images]), []
        for personalized, held in ((False, clients), (True, replace(clients, state=own))):
            answers = hooks.predict(task=task, received=received, clients=held, batch=batch)
            rates.append((answers.argmax(-1) == 3).float().mean().item())
            rate = rows[k, personalized].metrics["backdoor_rate"]
            assert rate == pytest.approx(rates[-1])
        differ += rates[0] != rates[1]
    assert differ


def test_a_backdoor_is_a_number_of_a_run_where_there_is_a_trigger():
    rows = pd.DataFrame(
        {
            "round": [1, 1, 1, 1, 2, 2],
            "client_id": [0, 1, 2, -1, 0, 1],
            "participating": [True, True, False, False, True, True],
            "num_correct": 1,
            "num_test": 2,
        }
    )
    assert "backdoor_rate" not in accuracies(rows, Reported((1, 2)))
    rows["backdoor_rate"] = [0.5, None, 1.0, None, 0.25, 0.75]
    assert accuracies(rows, Reported((1, 2)))["backdoor_rate"] == 50
    assert accuracies(rows, Reported((2,)))["backdoor_rate"] == 50
    rows.loc[0, "backdoor_rate"] = 0.1
    assert accuracies(rows, Reported((1,)))["backdoor_rate"] == 10
    assert accuracies(rows, Reported((1, 2)))["backdoor_rate"] == 30, "the mean of the rounds"


def test_the_trigger_of_an_honest_client_stands_for_nothing(run):
    task, hooks = run("backdoor", poisoned=0.0)
    assert hooks.training_data(task=task) is task.data
    task, hooks = run("backdoor", target=4)
    with refused("backdoor: target must be below the 4 classes, got 4"):
        hooks.training_data(task=task)
