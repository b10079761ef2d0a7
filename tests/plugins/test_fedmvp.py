"""FedMVP: prompts made from patches and attributes, by torch's own modules in float64."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom.common.errors import FedLoomError
from fedloom.federated.round import initial_state
from fedloom.federated.task import cohort
from fedloom.toolbox import SERVER_MODEL, tensor_map
from first_round import first_cohort, module

ATTRIBUTES = ["a letter with a curved stroke", "a letter with one bar"]


def jolted(params):
    """Return other parameters for every client, so that no bias is zero and no norm plain."""
    generator = torch.Generator().manual_seed(3)
    return tensor_map(lambda v: v + 0.2 * torch.randn(v.shape, generator=generator), params)


def loaded(layer, weight, bias):
    layer.weight.data, layer.bias.data = weight.double(), bias.double()
    return layer


class PromptFormer(nn.Module):
    """One client's network: patches [B, T, d] and text features [M, d'] -> P prompts [B, P, d]."""

    def __init__(self, p, heads):
        super().__init__()
        d, d_text = p["widen"]["weight"].shape
        self.widen = loaded(nn.Linear(d_text, d), **p["widen"])
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True).double()
        state = {
            "in_proj_weight": torch.cat([p[name]["weight"] for name in "qkv"]),
            "in_proj_bias": torch.cat([p[name]["bias"] for name in "qkv"]),
            "out_proj.weight": p["out"]["weight"],
            "out_proj.bias": p["out"]["bias"],
        }
        self.attention.load_state_dict(state)
        norms = [p[f"norm_{name}"] for name in ("queries", "keys", "mlp")]
        self.queries, self.keys, self.before = (
            loaded(nn.LayerNorm(d), n["scale"], n["shift"]) for n in norms
        )
        self.up = loaded(nn.Linear(d, 8 * d), **p["up"])
        self.down = loaded(nn.Linear(4 * d, d), **p["down"])

    def forward(self, patches, features, prompts):
        text = self.widen(features).expand(len(patches), -1, -1)
        x, _ = self.attention(self.queries(patches), self.keys(text), text)
        value, gate = self.up(self.before(x)).chunk(2, -1)
        x = x + self.down(value * F.gelu(gate))
        return nn.AdaptiveAvgPool1d(prompts)(x.mT).mT


def with_prompts(tower, pixels, prompter):
    """Return features [B, d_joint] of one client's images, with prompts behind the patches."""
    tower = copy.deepcopy(tower).double()
    x = tower.conv1(pixels.double()).flatten(2).mT
    x = torch.cat([tower.class_embedding.expand(len(x), 1, -1), x], 1) + tower.positional_embedding
    x = tower.ln_pre(torch.cat([x, prompter(x[:, 1:])], 1))
    for block in tower.transformer.resblocks:
        x = block(x)
    return F.normalize(tower.ln_post(x[:, 0]) @ tower.proj, dim=-1)


@pytest.mark.parametrize("role", ["trains", "predicts"])
def test_an_image_reads_the_attributes_of_the_clients_classes(tiny, role):
    task, hooks = tiny("fedmvp", heads=2, prompts=3, weight=4.0, templates=["a {}.", "one {}."])
    task.options.attributes = {task.data.classes[0]: [*ATTRIBUTES, "an outline"]}
    received, clients, batch = first_cohort(task, hooks)
    clip = task.backbone
    names = task.data.classes
    params = jolted(received["params"])
    texts = [task.options.attributes.get(n, [f"a {n}.", f"one {n}."]) for n in names]
    features = [clip.encode(of_class).double() for of_class in texts]
    if role == "trains":
        described = (x.expand(3, -1, -1) for x in module("fedmvp").descriptions(task))
        known = dict(zip(("features", "shares"), described, strict=True))
        found, extras = module("fedmvp").loss(task, params, known, clients, batch)
    else:
        found = hooks.predict(task=task, received={"params": params}, clients=clients, batch=batch)
    for k in range(3):
        given = list(range(4))
        if role == "trains":
            given = clients.priors[k].nonzero().flatten().tolist()
            assert len(given) == 2
        network = PromptFormer(tensor_map(lambda v: v[k].double(), params), 2)  # noqa: B023
        read = torch.cat([features[c] for c in given])
        images = with_prompts(
            clip.model.visual,
            clip.pixels(batch.images[k]),
            lambda x: network(x, read, 3),  # noqa: B023
        )
        means = torch.stack([features[c].mean(0) for c in given])
        expected = clip.logit_scale * images @ means.T
        if role == "trains":
            labels = torch.tensor([given.index(y) for y in batch.labels[k].tolist()])
            apart = 1 - (images * batch.features[k].double()).sum(-1)
            assert apart.max() > 0.001, "the prompts would be seen"
            entropy = F.cross_entropy(expected, labels, reduction="none")
            reported = extras["reported_loss"][k].double()
            torch.testing.assert_close(reported, entropy, atol=1e-4, rtol=1e-4)
            expected = entropy + 4.0 * apart
        torch.testing.assert_close(found[k].double(), expected, atol=1e-4, rtol=1e-4)


def test_a_class_without_attributes_is_described_by_its_name_in_words(tiny):
    task, _ = tiny("fedmvp", heads=2, templates=["a {}.", "one {}."])
    task.data.classes = ("polar_bear", "cat")
    features, shares = module("fedmvp").descriptions(task)
    texts = ["a polar bear.", "one polar bear.", "a cat.", "one cat."]
    assert torch.equal(features, task.backbone.encode(texts))
    assert shares.tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]


def test_the_server_and_every_client_predict_alike(tiny):
    task, hooks = tiny("fedmvp", heads=2)
    received, clients, batch = first_cohort(task, hooks)
    server = cohort(task, [SERVER_MODEL], [{}])
    of_clients, of_server = (
        hooks.predict(task=task, received=received, clients=who, batch=batch)
        for who in (clients, server)
    )
    assert torch.equal(of_clients, of_server)


@pytest.mark.parametrize("given", [[], "a text", [3]])
def test_attributes_that_are_no_texts_are_refused(tiny, given):
    task, hooks = tiny("fedmvp", heads=2)
    task.options.attributes = {task.data.classes[1]: given}
    received, clients, _ = first_cohort(task, hooks)
    with pytest.raises(FedLoomError, match=rf"fedmvp: options\.attributes\.{task.data.classes[1]}"):
        hooks.client_update(task=task, received=received, clients=clients)


def test_heads_must_divide_the_width(tiny):
    task, hooks = tiny("fedmvp", heads=3)
    with pytest.raises(FedLoomError, match=r"fedmvp: options\.heads: 3 does not divide"):
        initial_state(replace(task), hooks)


@pytest.mark.parametrize(("prompts", "patches"), [(4, 16), (3, 16), (5, 7), (1, 9), (9, 9)])
def test_prompts_are_means_as_those_of_adaptive_pooling(prompts, patches):
    values = torch.randn(2, patches, 6, dtype=torch.float64)
    shares = module("fedmvp").shares_of_patches(prompts, patches).double()
    pooled = F.adaptive_avg_pool1d(values.mT, prompts).mT
    torch.testing.assert_close(shares @ values, pooled, rtol=0, atol=1e-6)
