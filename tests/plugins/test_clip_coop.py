"""FedKgCoOp, KgCoOp, CoOp and FedCoCoOp: what they compute, by hand and in float64."""

import math
from copy import copy, deepcopy
from dataclasses import replace

import open_clip
import pytest
import torch
import torch.nn.functional as F

import clip_by_hand
from changed_task import with_limits
from fedloom.data.batch import shuffled_batches
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.hooks import manifest
from fedloom.toolbox import SERVER_MODEL, tensor_map
from first_round import first_cohort, module

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def jolted(tree, size=0.5):
    """Return the tree with other values for every client, so that nothing is at its start."""
    generator = torch.Generator().manual_seed(3)
    return tensor_map(lambda v: v + size * torch.randn(v.shape, generator=generator), tree)


def exact(task):
    """Return the task's CLIP in float64."""
    return deepcopy(task.backbone.model).double()


def under(model, context, features, names):
    """Return the logits and text features of one context [L, d]."""
    texts = clip_by_hand.features(model, context.double(), names)
    return clip_by_hand.logits(model, features.double(), texts), texts


def words(model, text):
    """Return the embedded words of a text, without SOS and EOT."""
    (ids,) = open_clip.tokenize(text)
    return model.token_embedding(ids[1 : len(text.split()) + 1])


def distance(texts, written):
    return sum(1 - a @ b for a, b in zip(texts, written, strict=True)) / len(texts)


@pytest.mark.parametrize("name", ["kgcoop", "cocoop"])
def test_the_context_starts_from_the_words(tiny, name):
    task, hooks = tiny(name)
    start = initial_state(task, hooks).server["params"]["context"]
    torch.testing.assert_close(start, words(task.backbone.model, "a photo of a"))


@pytest.mark.parametrize("name", ["kgcoop", "cocoop"])
def test_training_is_that_of_the_released_code(name):
    batch = {"kgcoop": 128, "cocoop": 1}[name]
    expected = {"optimizer": "sgd", "lr": 0.002, "schedule": "cosine", "batch_size": batch}
    training = manifest.find_method(name).merge_training()
    assert training | expected | {"momentum": 0.9, "weight_decay": 0.0005} == training


# ---- FedKgCoOp, KgCoOp and CoOp -------------------------------------------------------------


def test_kgcoop_adds_the_mean_distance_from_the_written_texts(tiny):
    task, hooks = tiny("kgcoop", weight=3.0, template="the letter {}")
    received, clients, batch = first_cohort(task, hooks)
    params = jolted(received["params"])
    names = task.data.classes
    model = exact(task)
    written = task.backbone.zero_shot(names, ["the letter {}"])
    known = {"written": written.expand(3, -1, -1)}
    losses, more = module("kgcoop").loss(task, params, known, clients, batch)
    server = cohort(task, [SERVER_MODEL], [{}])
    found, of_server = (
        hooks.predict(task=task, received={"params": params}, clients=who, batch=batch)
        for who in (clients, server)
    )
    assert torch.equal(of_server, found), "there is one context for all"
    for k in range(3):
        logits, texts = under(model, params["context"][k], batch.features[k], names)
        entropy = F.cross_entropy(logits, batch.labels[k], reduction="none")
        added = 3.0 * distance(texts, written.double())
        assert added > 0.1
        torch.testing.assert_close(losses[k].double(), entropy + added, **CLOSE)
        torch.testing.assert_close(more["reported_loss"][k].double(), entropy, **CLOSE)
        torch.testing.assert_close(found[k].double(), logits, **CLOSE)


def by_sgd(task, context, client, weight):
    """Return a client's context and mean loss after an epoch of torch's SGD in float64."""
    model = exact(task)
    names = task.data.classes
    training = task.training
    written = F.normalize(
        model.encode_text(open_clip.tokenize([f"one {name}" for name in names])), dim=-1
    ).detach()
    context = context.detach().double().clone().requires_grad_()
    lr = training.lr * (1 + math.cos(math.pi * (task.round - 1) / training.rounds)) / 2
    decay = training.weight_decay
    optimizer = torch.optim.SGD([context], lr, training.momentum, weight_decay=decay)
    rows = task.data.train[client]
    reported = []
    size = training.batch_size
    epochs = training.epochs
    for some in shuffled_batches(rows, size, epochs, task.seed, task.round, client, 0):
        batch = task.data.batch([some])
        logits, texts = under(model, context, batch.features[0], names)
        entropy = F.cross_entropy(logits, batch.labels[0])
        optimizer.zero_grad()
        (entropy + weight * distance(texts, written)).backward()
        optimizer.step()
        reported.append(entropy.item())
    return context.detach(), sum(reported) / len(reported)


@pytest.mark.parametrize(("averaged", "weight"), [(True, 8.0), (False, 8.0), (False, 0.0)])
def test_clients_train_towards_the_written_texts(tiny, averaged, weight):
    """The cases are FedKgCoOp, KgCoOp and CoOp; round 2 starts where round 1 ended."""
    task, hooks = tiny("kgcoop", averaged=averaged, weight=weight, template="one {}")
    state = initial_state(task, hooks)
    first = words(task.backbone.model, "a photo of a")
    own = dict.fromkeys(range(6), first)
    for number in (1, 2):
        state, row = train_round(task.at(number), hooks, state)
        took_part = [entry.client_id for entry in row.updates]
        for client in took_part:
            own[client], reported = by_sgd(task.at(number), own[client], client, weight)
            (entry,) = (e for e in row.updates if e.client_id == client)
            assert entry.metrics["train_loss"] == pytest.approx(reported, rel=1e-4)
        if averaged:
            sizes = {k: len(task.data.train[k]) for k in took_part}
            mean = sum(n * own[k] for k, n in sizes.items()) / sum(sizes.values())
            own = dict.fromkeys(range(6), mean)
            torch.testing.assert_close(state.server["params"]["context"].double(), mean, **CLOSE)
        else:
            assert row.bytes_up == row.bytes_down == 0 and not state.server.get("params")
            for client in took_part:
                kept = state.clients[client]["context"]
                torch.testing.assert_close(kept.double(), own[client], **CLOSE)
                assert (own[client] - first).abs().max() > 1e-3


def test_a_client_alone_predicts_with_its_own_context_and_the_server_not_at_all(tiny):
    task, hooks = tiny("kgcoop", averaged=False)
    _, clients, batch = first_cohort(task, hooks)
    own = {**clients.state, **jolted(clients.state)}
    clients = cohort(task, clients.ids, [{"context": c} for c in own["context"]])
    found = hooks.predict(task=task, received={}, clients=clients, batch=batch)
    for k in range(3):
        logits, _ = under(exact(task), own["context"][k], batch.features[k], task.data.classes)
        torch.testing.assert_close(found[k].double(), logits, **CLOSE)
    server = cohort(task, [SERVER_MODEL], [hooks.init_client(task=task, client=SERVER_MODEL)])
    assert hooks.predict(task=task, received={}, clients=server, batch=batch) is None


# ---- FedCoCoOp ------------------------------------------------------------------------------


def test_cocoop_shifts_the_context_by_what_two_layers_make_of_each_image(tiny):
    """A limit lets it encode few contexts at once, as it does where there are many images."""
    task, hooks = tiny("cocoop", length=3, words="a photo of")
    received, clients, batch = first_cohort(task, hooks)
    generator = torch.Generator().manual_seed(5)
    shapes = {"context": (3, 16), "w1": (5, 16), "b1": (5,), "w2": (16, 5), "b2": (16,)}
    params = {
        name: 0.5 * torch.randn(3, *shape, generator=generator) for name, shape in shapes.items()
    }
    method = module("cocoop")
    task = with_limits(task, prompts=8 * 4)
    losses = method.loss(task, params, received, clients, batch)
    found = method.predict(task, {"params": params}, batch)
    model = exact(task)
    p = {name: value.double() for name, value in params.items()}
    active = []
    for k in range(3):
        shifted = set()
        for b, image in enumerate(batch.features[k].double()):
            hidden = (p["w1"][k] @ image + p["b1"][k]).clamp(min=0)
            shift = p["w2"][k] @ hidden + p["b2"][k]
            context = torch.stack([token + shift for token in p["context"][k]])
            logits, _ = under(model, context, image[None], task.data.classes)
            torch.testing.assert_close(found[k, b].double(), logits[0], **CLOSE)
            entropy = F.cross_entropy(logits[0], batch.labels[k, b])
            torch.testing.assert_close(losses[k, b].double(), entropy, **CLOSE)
            shifted.add(round(shift[0].item(), 6))
            active += (hidden > 0).tolist()
        assert len(shifted) == 4, "another shift for each image"
    assert any(active) and not all(active), "the ReLU is seen"


def test_cocoops_meta_net_starts_as_torch_draws_linear_layers(tiny):
    task, hooks = tiny("cocoop")
    backbone = copy(task.backbone)
    backbone.encode = lambda texts: torch.zeros(len(texts), 512)  # the width of a ViT-B/16
    task = replace(task, backbone=backbone)
    params = hooks.init_server(task=task)["params"]
    shapes = {"w1": (32, 512), "b1": (32,), "w2": (16, 32), "b2": (16,)}
    for name, shape in shapes.items():
        values = params[name]
        bound = {"1": 512, "2": 32}[name[1]] ** -0.5
        assert values.shape == shape
        assert 0.8 * bound < values.abs().max() <= bound
        assert abs(values.mean()) < 0.5 * bound and (values < 0).any()
