"""CLIP methods with a shared and a personal part: what they compute, by hand and in float64."""

from copy import deepcopy
from functools import cache

import open_clip
import pytest
import torch
import torch.nn.functional as F

import clip_by_hand
from changed_task import with_training
from fedloom.backbones.clip.model import FrozenCLIP
from fedloom.data.batch import shuffled_batches
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import SERVER_MODEL, gradients, leaves, tensor_map
from first_round import first_cohort, module

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@cache
def doubled(model):
    return deepcopy(model).double()


def exact(task):
    """Return the task's CLIP in float64."""
    return doubled(task.backbone.model)


def jolted(tree, size=0.5):
    """Return the tree with other values for every client, so that nothing is at its start."""
    generator = torch.Generator().manual_seed(3)
    return tensor_map(lambda v: v + size * torch.randn(v.shape, generator=generator), tree)


# ---- PromptFolio ----------------------------------------------------------------------------


def folio_logits(task, images, shared, personal, theta):
    model = exact(task)
    names = task.data.classes
    of_shared, of_personal = (
        clip_by_hand.features(model, context.double(), names) for context in (shared, personal)
    )
    text = of_shared + theta * (of_personal - of_shared)
    return clip_by_hand.logits(model, images.double(), text)


def test_promptfolio_mixes_the_texts_of_a_shared_and_a_personal_context(tiny):
    task, hooks = tiny("promptfolio", theta=0.3, length=3)
    received, clients, batch = first_cohort(task, hooks)
    params = jolted(received["params"] | clients.state)
    clients = cohort(task, clients.ids, [{"personal": c} for c in params["personal"]])
    received = {"params": {"shared": params["shared"]}}
    losses = module("promptfolio").loss(task, params, received, clients, batch)
    server = cohort(task, [SERVER_MODEL], [hooks.init_client(task=task, client=SERVER_MODEL)])
    found, of_server = (
        hooks.predict(task=task, received=received, clients=who, batch=batch)
        for who in (clients, server)
    )
    for k in range(3):
        images = batch.features[k]
        own = (params["shared"][k], params["personal"][k])
        expected = folio_logits(task, images, *own, 0.3)
        torch.testing.assert_close(found[k].double(), expected, **CLOSE)
        entropy = F.cross_entropy(expected, batch.labels[k], reduction="none")
        torch.testing.assert_close(losses[k].double(), entropy, **CLOSE)
        alone = folio_logits(task, images, *own, 0.0)
        torch.testing.assert_close(of_server[k].double(), alone, **CLOSE)


def test_promptfolio_averages_the_shared_context_and_clients_keep_theirs(tiny):
    """Torch's SGD in float64 takes the same steps; a client starts from the context it kept."""
    task, hooks = tiny("promptfolio", length=3)
    task = with_training(task, epochs=1, batch_size=8)
    state = initial_state(task, hooks)
    shared = state.server["params"]["shared"].double()
    own = {k: hooks.init_client(task=task, client=k)["personal"].double() for k in range(6)}
    assert torch.equal(own[0], own[5]) and not torch.equal(own[0], shared)
    training = task.training
    for number in (1, 2):
        state, row = train_round(task.at(number), hooks, state)
        sent = {}
        for client in [entry.client_id for entry in row.updates]:
            pair = [v.clone().requires_grad_() for v in (shared, own[client])]
            decay = training.weight_decay
            optimizer = torch.optim.SGD(pair, training.lr, training.momentum, weight_decay=decay)
            rows = task.data.train[client]
            size = training.batch_size
            for some in shuffled_batches(rows, size, training.epochs, task.seed, number, client, 0):
                batch = task.data.batch([some])
                found = folio_logits(task, batch.features[0], *pair, 0.4)
                optimizer.zero_grad()
                F.cross_entropy(found, batch.labels[0]).backward()
                optimizer.step()
            sent[client], own[client] = (v.detach() for v in pair)
            kept = state.clients[client]["personal"].double()
            torch.testing.assert_close(kept, own[client], **CLOSE)
        sizes = {k: len(task.data.train[k]) for k in sent}
        shared = sum(n * sent[k] for k, n in sizes.items()) / sum(sizes.values())
        torch.testing.assert_close(state.server["params"]["shared"].double(), shared, **CLOSE)


# ---- pFedMMA --------------------------------------------------------------------------------


def mma_tower(blocks, x, mask, layers, shared, scale):
    """Return tokens [N, T, d] behind blocks, of which the last ones have adapters."""
    count = len(shared["weight"])

    def layer(of, i, v):
        return F.linear(v, of["weight"][i], of["bias"][i])

    for i, block in enumerate(blocks, start=count - len(blocks)):
        y = 0
        if i >= 0:
            hidden = F.relu(layer(layers["down"], i, block.ln_1(x)))
            y = scale * layer(layers["up"], i, F.relu(layer(shared, i, hidden)))
        x = block(x, attn_mask=mask) + y
    return x


def mma_logits(task, params, pixels, scale):
    """Return logits [B, C] of one client's layers, in float64."""
    model = exact(task)
    shared = params["shared"]
    texts = []
    for ids in open_clip.tokenize([f"the {name}." for name in task.data.classes]):
        x = model.token_embedding(ids) + model.positional_embedding
        blocks = model.transformer.resblocks
        x = mma_tower(blocks, x[None], model.attn_mask, params["text"], shared, scale)
        texts.append(model.ln_final(x)[0, ids.argmax()] @ model.text_projection)
    visual = model.visual
    x = visual.conv1(pixels).flatten(2).mT
    x = torch.cat([visual.class_embedding.expand(len(x), 1, -1), x], 1)
    x = visual.ln_pre(x + visual.positional_embedding)
    x = mma_tower(visual.transformer.resblocks, x, None, params["image"], shared, scale)
    images = F.normalize(visual.ln_post(x[:, 0]) @ visual.proj, dim=-1)
    return clip_by_hand.logits(model, images, F.normalize(torch.stack(texts), dim=-1))


@pytest.mark.parametrize("depths", [(2, 1), (2, 2)])
def test_pfedmma_adds_adapters_behind_the_last_blocks_of_both_towers(tiny, depths):
    """The scale multiplies the adapters' outputs, while their gradients are as if it were 1."""
    torch.manual_seed(0)
    vision = {"layers": depths[0], "width": 24, "head_width": 8, "patch_size": 8, "image_size": 16}
    text = {"width": 16, "heads": 2, "layers": depths[1]}
    model = clip_by_hand.make_clip(open_clip.CLIP, 16, vision, text)
    backbone = FrozenCLIP(model, open_clip.SimpleTokenizer(), "tiny")
    task, hooks = tiny("pfedmma", backbone=backbone, hidden=5, scale=0.25, words="the")
    received, clients, batch = first_cohort(task, hooks)
    params = jolted(received["params"] | clients.state)
    params = tensor_map(torch.Tensor.requires_grad_, params)
    plugin = module("pfedmma")
    known = {"words": plugin.embed_words(task, clients)}
    losses = plugin.loss(task, params, known, clients, batch)
    found = gradients(losses.sum(), params)
    for k in range(3):
        own = tensor_map(lambda v, k=k: v[k].detach().double().requires_grad_(), params)
        pixels = task.backbone.pixels(batch.images[k]).double()
        logits = mma_logits(task, own, pixels, 0.25)
        entropy = F.cross_entropy(logits, batch.labels[k], reduction="none")
        torch.testing.assert_close(losses[k].double(), entropy, **CLOSE)
        expected = dict(leaves(gradients(entropy.sum(), own)))
        for path, value in leaves(found):
            torch.testing.assert_close(value[k].double(), expected[path] / 0.25, **CLOSE)


def test_pfedmma_sends_the_shared_layers_and_clients_keep_those_of_the_towers(tiny):
    task, hooks = tiny("pfedmma", scale=0.5, words="the", hidden=400)
    received, clients, batch = first_cohort(task, hooks)
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    assert all(set(update.payload["params"]) == {"shared"} for update in updates)
    kept = cohort(task, clients.ids, [update.client_state for update in updates])
    found = hooks.predict(task=task, received=received, clients=kept, batch=batch)
    for k in range(3):
        own = tensor_map(lambda v, k=k: v[k].double(), received["params"] | kept.state)
        pixels = task.backbone.pixels(batch.images[k]).double()
        torch.testing.assert_close(found[k].double(), mma_logits(task, own, pixels, 0.5), **CLOSE)
    for path, value in leaves(clients.state):
        assert torch.equal(value[0], value[2]), "all start alike"
        assert not torch.equal(dict(leaves(kept.state))[path], value), "trained and kept"
        spread = (2 / (400 if "down" in path else 16)) ** 0.5 if "weight" in path else 0
        assert value.std().item() == pytest.approx(spread, rel=0.05)
    assert received["params"]["shared"]["weight"].std().item() == pytest.approx(200**-0.5, rel=0.05)
    server = cohort(task, [SERVER_MODEL], [hooks.init_client(task=task, client=SERVER_MODEL)])
    assert hooks.predict(task=task, received=received, clients=server, batch=batch) is None
