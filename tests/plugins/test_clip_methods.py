"""The methods that tune text prompts of CLIP, against their equations."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clip_by_hand
from changed_task import with_facts, with_limits
from fedloom.common.errors import FedLoomError
from fedloom.federated import build_task
from fedloom.federated.groups import iterate_examples
from fedloom.federated.round import initial_state
from fedloom.federated.task import cohort
from fedloom.hooks import manifest
from fedloom.planning.run_labels import Run
from first_round import first_cohort, module

TRAINED = ("promptfl", "fedotp", "fedpgp", "fedpha")


# ---- what they share ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parts"), [("fedotp", ["local"]), ("fedpgp", ["u", "v"])])
def test_personal_parts_are_alike_on_all_clients_at_first(tiny, name, parts):
    """The authors' code starts all clients alike; FedPHA alone has an option, `same_start`."""
    task, hooks = tiny(name)
    states = [hooks.init_client(task=task, client=k) for k in range(6)]
    other = hooks.init_client(task=replace(task, seed=1), client=0)
    for part in parts:
        assert all(torch.equal(state[part], states[0][part]) for state in states)
        assert not torch.equal(other[part], states[0][part])
        assert states[0][part].std() == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("name", TRAINED)
def test_training_is_by_default_that_of_the_released_code(name):
    training = manifest.find_method(name).merge_training()
    expected = {"optimizer": "sgd", "lr": 0.001, "momentum": 0.9, "weight_decay": 0.0005}
    assert training | expected | {"batch_size": 32, "epochs": 1} == training


# ---- PromptFL and FedPGP --------------------------------------------------------------------


def test_fedpgp_adds_a_part_of_low_rank_and_contrasts_by_hand(tiny):
    task, hooks = tiny("fedpgp", length=6, rank=2)
    received, clients, batch = first_cohort(task, hooks)
    method = module("fedpgp")
    params = {**received["params"], **clients.state}
    own = method.personal_contexts(params)
    assert torch.linalg.matrix_rank(own - params["sigma"]).tolist() == [2, 2, 2]
    # text features, class by class, give the term; the written prompt is encoded as a whole text
    clip = task.backbone
    classes = task.data.classes
    of_written = clip.encode([f"X X X X X X {name}." for name in classes]).double().numpy()
    for mu in (0.0, 0.7):
        task.options.mu = mu
        known = {**received, "written": method.written_features(task).expand(3, -1, -1)}
        values, more = method.loss(task, params, known, clients, batch)
        for k in range(3):
            of_sigma, of_own = (
                clip.text_features(context, classes).double().numpy()
                for context in (params["sigma"][k], own[k])
            )
            near, far = ((x * of_sigma).sum(1) / 0.5 for x in (of_written, of_own))
            expected = mu * np.log1p(np.exp(far - near)).mean()
            assert near.std() > 0.001, "classes differ"
            apart = (values - more["reported_loss"])[k]
            np.testing.assert_allclose(apart.detach(), expected, atol=1e-5)


@pytest.mark.parametrize("role", ["client", "server's model"])
def test_fedpgp_trains_and_predicts_with_both_parts_and_the_server_with_sigma(tiny, role):
    task, hooks = tiny("fedpgp", length=6, rank=2, mu=0.0)
    received, clients, batch = first_cohort(task, hooks)
    clients = replace(clients, state={name: 20 * x for name, x in clients.state.items()})
    sigma = received["params"]["sigma"]
    (u, v) = (clients.state[name] for name in "uv")
    own = sigma.double() + torch.einsum("klr,krd->kld", u.double(), v.double())
    model = task.backbone.model
    names = task.data.classes
    if role == "client":
        contexts = own.float()
        params = {**received["params"], **clients.state}
        known = {**received, "written": torch.zeros(3, 4, 16)}
        losses, _ = module("fedpgp").loss(task, params, known, clients, batch)
    else:
        contexts = sigma[:1]
        server = cohort(task, [-1], [hooks.init_client(task=task, client=-1)])
        received = {"params": {"sigma": sigma[:1]}}
        clients = server
        batch = task.data.batch([batch.index[0]])
    found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    for k, context in enumerate(contexts):
        text = clip_by_hand.features(model, context, names)
        expected = clip_by_hand.logits(model, batch.features[k], text).detach()
        torch.testing.assert_close(found[k], expected, atol=1e-4, rtol=1e-4)
        if role == "client":
            entropy = F.cross_entropy(expected, batch.labels[k], reduction="none")
            torch.testing.assert_close(losses[k], entropy, atol=1e-4, rtol=1e-4)
            shared = clip_by_hand.features(model, sigma[k], names)
            other = clip_by_hand.logits(model, batch.features[k], shared)
            assert (other - expected).abs().max() > 0.1, "sigma alone would be seen"


def test_the_proximal_gradient_is_mu_times_the_distance(tiny):
    gradients = {}
    reported = {}
    for mu in (0.0, 0.5):
        task, hooks = tiny("promptfl", mu=mu)
        received, clients, batch = first_cohort(task, hooks)
        moved = received["params"]["context"] + 0.3
        params = {"context": moved.clone().requires_grad_()}
        found = module("promptfl").loss(task, params, received, clients, batch)
        assert isinstance(found, tuple) == (mu > 0), "no term is added for mu 0"
        values, more = found if mu else (found, {"reported_loss": found})
        values.mean(1).sum().backward()
        gradients[mu] = params["context"].grad
        reported[mu] = more["reported_loss"]
    expected = 0.5 * (moved - received["params"]["context"])
    torch.testing.assert_close(gradients[0.5] - gradients[0.0], expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(reported[0.0], reported[0.5])


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_a_context_that_the_tower_does_not_hold_is_refused_at_the_start(tiny, name):
    """The text tower has 77 places: 3 for SOS, full stop and EOT, and 2 for "long delta"."""
    task, hooks = tiny(name, length=72)
    initial_state(task, hooks)
    hooks.init_client(task=task, client=0)
    task, hooks = tiny(name, length=73)
    line = f"^{name}: a context of 73 tokens, but the text tower holds 72 before the longest"
    with pytest.raises(FedLoomError, match=line):
        initial_state(task, hooks)


@pytest.mark.parametrize("name", TRAINED)
def test_a_class_without_a_name_is_refused_at_the_start(tiny, name):
    task, hooks = tiny(name)
    task.data.classes = ("alpha", "_", "gamma", "delta")  # a folder may be called "_"
    with pytest.raises(FedLoomError, match="class 1 of 4 has none"):
        initial_state(task, hooks)


def test_classes_that_are_mere_numbers_are_refused(monkeypatch):
    build_task.check_classes_have_names({"classes": ["0", "1"]}, "digits")
    line = "^datasets.x: its 2 classes have numbers.* datasets.x.class_names, .* datasets.x.names$"
    with pytest.raises(FedLoomError, match=line):
        build_task.check_classes_have_names({"classes": ["0", "1"], "named": False}, "x")
    facts = {"classes": ["0", "1"], "named": False}
    for name in ("read_receipt", "check_receipt"):
        monkeypatch.setattr(build_task, name, lambda path: facts)
    spec = SimpleNamespace(
        run=Run("x", "even", "tiny", "promptfl", 0),
        method=SimpleNamespace(plugin="promptfl", wrappers=()),
    )
    with pytest.raises(FedLoomError, match=line):
        build_task.build_task(spec, {"store": None, "partition": None}, torch.device("cpu"))


def test_zero_shot_is_the_mean_of_its_templates(tiny):
    task, hooks = tiny("zero_shot_clip", templates=["a {}.", "the letter {}"])
    received, clients, batch = first_cohort(task, hooks)
    found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    clip = task.backbone
    texts = [[t.format(n) for n in task.data.classes] for t in ("a {}.", "the letter {}")]
    text = F.normalize(sum(clip.encode(part) for part in texts) / 2, dim=-1)
    torch.testing.assert_close(found, clip.logit_scale * batch.features @ text.T)
    update = hooks.client_update(task=task, received=received, clients=clients)[0]
    assert update.payload == {"params": {}} and update.client_state == {}


@pytest.mark.parametrize(("name", "batches"), [("promptfl", 1), ("fedotp", 4), ("fedvpt", 4)])
def test_prompts_are_encoded_once_for_a_cohorts_test_images(tiny, name, batches):
    """PromptFL reads cached features, all in a batch; patches and prompted images take memory."""
    task, hooks = tiny(name)
    task = with_limits(task, images=18)
    received, clients, _ = first_cohort(task, hooks, [0, 1, 2])
    rows = [np.arange(24)] * 3
    found = list(iterate_examples(task, rows))
    assert len(found) == batches
    whole = iterate_examples(with_facts(task, features_only=True), rows)
    logits = [
        torch.cat(
            [hooks.predict(task=task, received=received, clients=clients, batch=b) for b in s], 1
        )
        for s in (found, whole)
    ]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)
