"""FedCLIP, FedTPG and pFedMoAP: adapters, generated contexts and mixed experts, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clip_by_hand
from changed_task import with_training
from fedloom.common.errors import FedLoomError
from fedloom.data.batch import shuffled_batches
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import manifest
from fedloom.toolbox import tensor_map
from first_round import first_cohort, module, upload


def softmax(x, axis=-1):
    x = np.exp(x - x.max(axis, keepdims=True))
    return x / x.sum(axis, keepdims=True)


def numpy(tree):
    return {k: numpy(v) if isinstance(v, dict) else v.double().numpy() for k, v in tree.items()}


def one(tree, k):
    """Return client k's part of parameters in NumPy."""
    return {name: one(v, k) if isinstance(v, dict) else v[k] for name, v in tree.items()}


# ---- FedCLIP --------------------------------------------------------------------------------


def adapted(p, feature):
    """Return att(I) * I of one image, scaled to unit length."""
    x = softmax(p["w2"] @ np.tanh(p["w1"] @ feature + p["b1"]) + p["b2"]) * feature
    return x / np.linalg.norm(x)


def of_texts(task, template="a picture of a {}"):
    texts = [template.replace("{}", name) for name in task.data.classes]
    return task.backbone.encode(texts).double().numpy()


def test_fedclip_weighs_the_entries_of_an_image_by_hand(tiny):
    task, hooks = tiny("fedclip")
    received, clients, batch = first_cohort(task, hooks)
    generator = torch.Generator().manual_seed(0)
    params = {
        name: value + torch.randn(value.shape, generator=generator)  # other values for every client
        for name, value in received["params"].items()
    }
    found = hooks.predict(task=task, received={"params": params}, clients=clients, batch=batch)
    texts = of_texts(task)
    scale = task.backbone.logit_scale
    for k in range(3):
        p = one(numpy(params), k)
        for b, feature in enumerate(batch.features[k].double().numpy()):
            expected = scale * texts @ adapted(p, feature)
            np.testing.assert_allclose(found[k, b].numpy(), expected, atol=1e-3)
            plain = scale * texts @ feature
            assert np.abs(plain - expected).max() > 0.1, "the adapter would be seen"


def test_fedclip_contrasts_the_images_of_a_batch_with_their_texts(tiny):
    """The loss goes both ways among a batch's real images; two of one class are negatives."""
    task, hooks = tiny("fedclip")
    received, clients, _ = first_cohort(task, hooks)
    batch = task.data.batch([task.data.train[k][:n] for k, n in zip(clients.ids, (5, 3, 1))])  # noqa: B905
    texts = torch.from_numpy(of_texts(task)).float()
    known = {**received, "texts": texts.expand(3, -1, -1)}
    params = {name: value.clone().requires_grad_() for name, value in received["params"].items()}
    found = module("fedclip").loss(task, params, known, clients, batch)
    p = one(numpy(received["params"]), 0)
    for k, count in enumerate((5, 3, 1)):
        labels = batch.labels[k, :count].tolist()
        images = np.array([adapted(p, x) for x in batch.features[k, :count].double().numpy()])
        logits = task.backbone.logit_scale * images @ texts.double().numpy()[labels].T
        both = -(np.log(np.diag(softmax(logits, 1))) + np.log(np.diag(softmax(logits, 0)))) / 2
        np.testing.assert_allclose(found[k, :count].detach().numpy(), both, atol=1e-4)
        assert not found[k, count:].any()
    found.sum().backward()
    for value in params.values():
        assert value.grad.isfinite().all(), "also where a batch is filled up"
        assert value.grad[0].any() and not value.grad[2].any(), "one pair has nothing to tell apart"


def by_adam(task, start, client):
    """Return the parameters after one epoch of torch's Adam in float64.

    Batches of one image are skipped, as in the released code.
    """
    params = {name: value.double().clone().requires_grad_() for name, value in start.items()}
    settings = {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.2}
    optimizer = torch.optim.Adam(params.values(), task.training.lr, **settings)
    rows = task.data.train[client]
    size = task.training.batch_size
    texts = torch.from_numpy(of_texts(task))
    for some in shuffled_batches(rows, size, 1, task.seed, task.round, client, 0):
        if len(some) == 1:
            continue
        batch = task.data.batch([some])
        features = batch.features[0].double()
        hidden = torch.tanh(features @ params["w1"].T + params["b1"])
        weights = (hidden @ params["w2"].T + params["b2"]).softmax(-1)
        scores = F.normalize(weights * features, dim=-1) @ texts[batch.labels[0]].T
        scores = task.backbone.logit_scale * scores
        truth = torch.arange(len(some))
        optimizer.zero_grad()
        ((F.cross_entropy(scores, truth) + F.cross_entropy(scores.T, truth)) / 2).backward()
        optimizer.step()
    return params


def test_fedclip_makes_no_step_of_a_last_batch_of_one_image(tiny):
    """A step on one image would only decay weights; a client of one image keeps what it got."""
    task, hooks = tiny("fedclip")
    ids = task.data.participating[:3]
    kept = list(task.data.train)
    for k, count in zip(ids, (5, 6, 1), strict=True):  # batches have four images
        kept[k] = kept[k][:count]
    task = with_training(task, epochs=1, lr=0.01)
    task = replace(task, data=replace(task.data, train=kept)).at(1)
    received, clients, _ = first_cohort(task, hooks)
    updates = hooks.client_update(task=task, received=received, clients=clients)
    for k, update in enumerate(updates):
        start = {name: value[k] for name, value in received["params"].items()}
        for name, expected in by_adam(task, start, clients.ids[k]).items():
            torch.testing.assert_close(
                update.payload["params"][name].double(), expected.detach(), atol=1e-5, rtol=1e-5
            )
    alone = tensor_map(lambda value: value[2:], received)
    again = hooks.client_update(task=task, received=alone, clients=clients.subset([2]))
    for update in (updates[2], *again):
        assert update.metrics["train_loss"] == 0
        assert torch.equal(update.payload["params"]["w1"], received["params"]["w1"][2])


def test_fedclip_refuses_micro_batches_where_images_are_contrasted():
    plugin = manifest.find_method("fedclip")
    assert plugin.refused_parts({"loss": "contrastive"}, 2, True)
    assert plugin.refused_parts({"loss": "classes"}, 2, True) is None


# ---- FedTPG ---------------------------------------------------------------------------------


def layer_norm(x, p):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * p["scale"] + p["shift"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def context(p, names, heads):
    """Return the generated context [m, d], computed head by head and token by token."""
    text = layer_norm(names, p["norm_keys"])
    asked = layer_norm(p["queries"], p["norm_queries"])
    q = asked @ p["q"]["weight"].T + p["q"]["bias"]
    k = text @ p["k"]["weight"].T + p["k"]["bias"]
    v = text @ p["v"]["weight"].T + p["v"]["bias"]
    width = q.shape[1] // heads
    read = np.zeros_like(q)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        for token in range(len(q)):
            weights = softmax(k[:, part] @ q[token, part] / math.sqrt(width))
            read[token, part] = weights @ v[:, part]
    x = read @ p["out"]["weight"].T + p["out"]["bias"]
    up = layer_norm(x, p["norm_mlp"]) @ p["up"]["weight"].T + p["up"]["bias"]
    value, gate = np.split(up, 2, axis=1)
    return x + (value * gelu(gate)) @ p["down"]["weight"].T + p["down"]["bias"]


def jolted(params):
    """Return other parameters for every client, so that no bias is zero and no norm plain."""
    generator = torch.Generator().manual_seed(3)
    return tensor_map(lambda v: v + 0.3 * torch.randn(v.shape, generator=generator), params)


@pytest.mark.parametrize("names", ["own", "all"])
def test_fedtpg_generates_a_context_and_trains_among_own_classes(tiny, names):
    task, hooks = tiny("fedtpg", length=3, heads=2, names=names)
    received, clients, batch = first_cohort(task, hooks)
    params = jolted(received["params"])
    features = task.backbone.encode(list(task.data.classes))
    known = {**received, "names": features.expand(3, -1, -1)}
    found = module("fedtpg").loss(task, params, known, clients, batch)
    model = task.backbone.model
    for k in range(3):
        given = np.arange(4)
        if names == "own":
            given = np.flatnonzero(clients.priors[k].numpy() > 0)
            assert len(given) == 2
        made = context(one(numpy(params), k), features.double().numpy()[given], 2)
        text = clip_by_hand.features(model, torch.from_numpy(made).float(), task.data.classes)
        scores = clip_by_hand.logits(model, batch.features[k], text)[:, given]
        labels = torch.tensor([given.tolist().index(y) for y in batch.labels[k].tolist()])
        expected = F.cross_entropy(scores, labels, reduction="none")
        torch.testing.assert_close(found[k], expected, atol=1e-3, rtol=1e-3)


def test_fedtpg_refuses_heads_that_do_not_divide_the_width(tiny):
    task, hooks = tiny("fedtpg", heads=3)
    with pytest.raises(FedLoomError, match="heads: 3 does not divide the text tower's width 16"):
        initial_state(task, hooks)


# ---- pFedMoAP -------------------------------------------------------------------------------


def mixture(p, image, experts, heads, scale):
    """Return h_c(x) of one image x [g] and one class, whose features under E experts are [E, g]."""
    q = p["q"]["weight"] @ image + p["q"]["bias"]
    k = experts @ p["k"]["weight"].T + p["k"]["bias"]
    v = experts @ p["v"]["weight"].T + p["v"]["bias"]
    width = len(q) // heads
    read = np.zeros_like(q)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        read[part] = softmax(scale * k[:, part] @ q[part]) @ v[:, part]
    return p["out"]["weight"] @ read + p["out"]["bias"]


def cases():
    """Return gates, own prompts and experts of three clients, of whom the last has no expert."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape, size=0.2):
        return size * torch.randn(shape, generator=generator)

    g = 8
    layers = ("q", "k", "v", "out")
    gate = {name: {"weight": draw(3, g, g, size=0.5), "bias": draw(3, g)} for name in layers}
    prompts = draw(3, 4, 16)
    experts = draw(3, 2, 4, 16)
    present = torch.tensor([[True, True], [True, False], [False, False]])
    return gate, prompts, experts, present


@pytest.mark.parametrize("role", ["trains", "predicts"])
def test_pfedmoap_mixes_experts_by_hand(tiny, role):
    """The gate reads every second of 16 entries, so that a wrong reduction would be noticed."""
    task, hooks = tiny("pfedmoap", length=4, experts=3, gate_width=8, heads=2, scale=4.0, local=0.7)
    received, clients, batch = first_cohort(task, hooks)
    gate, prompts, experts, present = cases()
    constants = {"experts": experts, "present": present}
    received = {"params": {"context": prompts}, "constants": {**constants, "own": prompts}}
    if role == "predicts":
        ever = torch.ones(3, dtype=torch.bool)
        clients = replace(clients, state={"gate": gate, "gate_trained": ever})
        found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    else:
        known = received | {"text": module("pfedmoap").expert_features(task, received)}
        params = {"context": prompts, "gate": gate}
        found = module("pfedmoap").loss(task, params, known, clients, batch)
    model = task.backbone.model
    names = task.data.classes
    scale = task.backbone.logit_scale
    for k in range(3):
        here = [prompts[k], *(experts[k][present[k]])]
        texts = [clip_by_hand.features(model, p, names).detach().double().numpy() for p in here]
        images = batch.features[k].double().numpy()
        local = scale * images @ texts[0].T
        expected = local.copy()
        if len(here) > 1:
            reduced = np.stack(texts)[:, :, ::2]  # [E, C, g]
            for b, x in enumerate(images[:, ::2]):
                for c in range(4):
                    h = mixture(one(numpy(gate), k), x, reduced[:, c], 2, 4.0)
                    expected[b, c] = 0.7 * local[b, c] + scale * x @ h
            assert np.abs(expected - local).max() > 0.1
        if role == "trains":
            labels = batch.labels[k].numpy()
            expected = -np.log(softmax(expected)[np.arange(len(labels)), labels])
        np.testing.assert_allclose(found[k].detach().numpy(), expected, atol=1e-3, rtol=1e-3)


def test_pfedmoap_sends_the_nearest_prompts_of_others_that_took_part(tiny):
    task, hooks = tiny("pfedmoap", length=4, experts=3)
    server = initial_state(task, hooks).server
    generator = torch.Generator().manual_seed(1)
    pool = torch.randn(6, 4, 16, generator=generator)
    known = torch.tensor([False, True, True, False, True, True])
    server = {**server, "pool": pool, "known": known}
    task = replace(task.at(3), selected=(1, 2, 3))
    for client in (1, 2, 4):
        sent = hooks.download(task=task, server=server, client=client)
        far = {
            k: np.linalg.norm(pool[k].double().numpy() - pool[client].double().numpy())
            for k in (1, 2, 4, 5)
            if k != client
        }
        first, second = sorted(far, key=far.__getitem__)[:2]
        assert torch.equal(sent["constants"]["experts"], pool[[first, second]])
        assert sent["constants"]["present"].all() and "own" not in sent["constants"]
    new = hooks.download(task=task, server=server, client=3)  # new to the server
    assert not new["constants"]["present"].any() and not new["constants"]["experts"].any()


def test_pfedmoap_answers_with_the_own_prompt_or_the_mean(tiny):
    task, hooks = tiny("pfedmoap", length=4, experts=3)
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    took_part = [entry.client_id for entry in row.updates]
    server = state.server
    now = task.at(1)
    prompts = [server["pool"][k] for k in took_part]
    weights = [len(task.data.train[k]) for k in took_part]
    mean = sum(w * p.double() for w, p in zip(weights, prompts, strict=True)) / sum(weights)
    torch.testing.assert_close(server["params"]["context"].double(), mean, atol=1e-6, rtol=1e-6)
    assert server["known"].tolist() == [k in took_part for k in range(6)]
    for client in (*took_part, 0, -1):
        own = hooks.download(task=now, server=server, client=client)["constants"]["own"]
        expected = server["pool"][client] if client in took_part else server["params"]["context"]
        assert torch.equal(own, expected)


def test_pfedmoap_trains_the_gate_only_beside_experts(tiny):
    """Not even weight decay moves the gate of a client that has no experts."""
    task, hooks = tiny("pfedmoap", length=4, experts=3)
    task = with_training(task, weight_decay=0.1)
    received, clients, _ = first_cohort(task, hooks)
    _, prompts, experts, present = cases()
    constants = {"experts": experts, "present": present}
    received = {"params": {"context": prompts}, "constants": constants}
    updates = hooks.client_update(task=task.at(2), received=received, clients=clients)
    for k, update in enumerate(updates):
        assert list(update.payload["params"]) == ["context"], "the gate stays"
        assert bool(update.client_state["gate_trained"]) == bool(present[k].any())
        for name, layer in update.client_state["gate"].items():
            moved = not torch.equal(layer["weight"], clients.state["gate"][name]["weight"][k])
            assert moved == bool(present[k].any()), name


def test_pfedmoap_asks_no_gate_that_was_never_trained(tiny):
    task, hooks = tiny("pfedmoap", length=4, experts=3)
    received, clients, batch = first_cohort(task, hooks)
    _, prompts, experts, present = cases()
    constants = {"experts": experts, "present": present, "own": prompts}
    received = {"params": {"context": prompts}, "constants": constants}
    answer = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    alone = {**received, "constants": {**constants, "present": torch.zeros_like(present)}}
    expected = hooks.predict(task=task, received=alone, clients=clients, batch=batch)
    assert torch.equal(answer, expected)


def test_pfedmoap_refuses_heads_that_do_not_divide_what_the_gate_reads(tiny):
    task, hooks = tiny("pfedmoap", heads=3)
    with pytest.raises(FedLoomError, match="heads: 3 does not divide the 16 entries"):
        hooks.init_client(task=task, client=0)


def test_pfedmoap_keeps_the_prompts_of_those_who_did_not_take_part(tiny):
    task, hooks = tiny("pfedmoap", length=4)
    first = server = initial_state(task, hooks).server
    for client in (2, 4):
        sent = upload({"context": torch.full((4, 16), float(client))}, client=client)
        server = hooks.aggregate(task=task, server=server, updates=[sent])
    assert server["pool"][[2, 4], 0, 0].tolist() == [2, 4]
    assert server["known"].nonzero().flatten().tolist() == [2, 4] and not first["known"].any()
