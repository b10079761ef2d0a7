"""Methods that train the inside of a ViT, against timm's own model in float64, client by client."""

import copy
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from changed_task import with_limits, with_training
from default_config import default_config
from doubled import doubled
from fedloom.backbones import vit as vit_module
from fedloom.cli.inspect.downlink import downlink_floats
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.task import cohort
from fedloom.planning.job_specs import to_json
from fedloom.planning.load_plan import resolve
from fedloom.planning.plan import Plan
from fedloom.planning.runs import study_runs
from fedloom.toolbox import SERVER_MODEL, leaves, tensor_map
from first_round import first_cohort


def _plugin(name):
    return sys.modules[f"fedloom_plugins.{name}.plugin"]


def _case(tiny, name, **options):
    """Return a task in float64, random parameters [3, ...] of its method, clients and a batch."""
    task, hooks = tiny(name, **options)
    doubled(task)
    received, clients, batch = first_cohort(task, hooks)
    params = tensor_map(lambda v: v.double() + 0.2 * torch.randn(v.shape).double(), received)
    return task, params["params"], clients, batch


def _pixels(task, batch, k):
    return task.backbone.pixels(batch.images[k])


@pytest.mark.parametrize(("shared", "ranks"), [("both", []), ("a", [1, 3, 2]), ("b", [3, 1])])
def test_lora_is_an_addition_to_the_weights(tiny, monkeypatch, shared, ranks):
    """W + alpha / r B A takes the place of W in queries, keys, values and output projection."""
    targets = ["q", "k", "v", "proj"]
    options = {"rank": 3, "alpha": 6.0, "targets": targets, "shared": shared, "ranks": ranks}
    task, hooks = tiny("fedlora", **options)
    doubled(task)
    received, clients, batch = first_cohort(task, hooks, ids=[0, 2, 4])
    params = tensor_map(
        lambda v: v.double() + 0.2 * torch.randn(v.shape).double(),
        received["params"] | clients.state,
    )
    plugin = _plugin("fedlora")
    drawn = tensor_map(torch.Tensor.double, plugin.initial_a(task))
    monkeypatch.setattr(plugin, "initial_a", lambda task: drawn)
    known = tensor_map(torch.Tensor.double, plugin.frozen_state(task, clients))
    actual = plugin.logits(task, params, known, batch)
    for k in range(3):
        rank = ranks[(2 * k) * len(ranks) // 6] if ranks else 3  # six clients share the entries
        model = copy.deepcopy(task.backbone.model)
        d = task.backbone.width
        for j, block in enumerate(model.blocks):
            for number, target in enumerate(targets):
                a = drawn[target][j] if shared == "b" else params["a"][target][k, j]
                b = params["b"][target][k, j]
                change = 6.0 / rank * b[:, :rank] @ a[:rank]
                if target == "proj":
                    block.attn.proj.weight.data += change
                else:
                    block.attn.qkv.weight.data[number * d : (number + 1) * d] += change
        expected = model(_pixels(task, batch, k)) @ params["head"][k].T
        torch.testing.assert_close(actual[k], expected, atol=1e-10, rtol=1e-10)
    server = plugin.frozen_state(task, cohort(task, [SERVER_MODEL], [{}]))
    assert server["rows"].all() and server["scale"].item() == 2.0, "it has the largest rank"


def test_a_frozen_a_is_the_same_in_every_round(tiny):
    task, _ = tiny("fedlora", shared="b")
    first, later = (_plugin("fedlora").initial_a(task.at(number)) for number in (1, 2))
    assert all(torch.equal(first[target], later[target]) for target in first)


@pytest.mark.parametrize("shared", ["both", "b"])
def test_the_mean_of_lora_products_is_the_product_of_means_if_a_is_frozen(tiny, shared):
    task, hooks = tiny("fedlora", shared=shared)
    task = with_training(task, lr=2.0)  # so that A moves far
    received, clients, _ = first_cohort(task.at(1), hooks)
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    server = {"params": tensor_map(lambda v: v[0], received["params"])}
    after = hooks.aggregate(task=task, server=server, updates=updates)["params"]
    drawn = _plugin("fedlora").initial_a(task)
    total = sum(update.num_examples for update in updates)

    def product(params):
        return params["b"]["q"] @ (drawn if shared == "b" else params["a"])["q"]

    mean = sum(u.num_examples / total * product(u.payload["params"]) for u in updates)
    gap = (product(after) - mean).abs().max() / mean.abs().max()
    assert gap < 1e-5 if shared == "b" else gap > 1e-3
    assert ("a" in after) is (shared == "both")


def test_fedsa_lora_sends_a_alone_and_clients_keep_b_and_the_head(tiny):
    task, hooks = tiny("fedlora", shared="a", ranks=[2, 5])
    task = with_training(task, lr=0.2)
    state = initial_state(task, hooks)
    first = state.server["params"]["a"]["q"]
    for number in (1, 2):
        received, _, batch = first_cohort(task, hooks, [0, 5], state.server)
        kept = [state.clients.get(k, hooks.init_client(task=task, client=k)) for k in (0, 5)]
        clients = cohort(task, [0, 5], kept)
        updates = hooks.client_update(task=task.at(number), received=received, clients=clients)
        sent = [update.payload["params"] for update in updates]
        state.server = hooks.aggregate(task=task, server=state.server, updates=updates)
        state.clients.update({k: u.client_state for k, u in zip((0, 5), updates, strict=True)})
        assert all(set(params) == {"a"} for params in sent)
    assert first.shape[1] == 5 and not sent[0]["a"]["v"][:, 2:].any()
    assert sent[0]["a"]["q"][:, :2].any() and sent[1]["a"]["q"].any(2).all()
    sizes = [update.num_examples for update in updates]
    mean = sum(n * p["a"]["q"] for n, p in zip(sizes, sent, strict=True)) / sum(sizes)
    torch.testing.assert_close(state.server["params"]["a"]["q"], mean)
    server = cohort(task, [SERVER_MODEL], [{}])
    assert hooks.predict(task=task, received=received, clients=server, batch=batch) is None
    clients = cohort(task, [0, 5], [update.client_state for update in updates])
    trained = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    others = cohort(task, [0, 5], [hooks.init_client(task=task, client=k) for k in (0, 5)])
    assert not hooks.predict(task=task, received=received, clients=others, batch=batch).any()
    loss, guess = (
        F.cross_entropy(z.flatten(0, 1), batch.labels.flatten()) for z in (trained, 0 * trained)
    )
    assert loss < guess and not torch.equal(*(u.client_state["head"] for u in updates))


@pytest.mark.parametrize("form", ["houlsby", "adaptformer"])
def test_adapters_stand_behind_or_beside_the_sub_layers(tiny, form):
    task, params, _, batch = _case(tiny, "fedavg_adapter", form=form, hidden=5)
    actual = _plugin("fedavg_adapter").logits(task, params, batch)
    assert set(params["adapters"]) == ({"attention", "mlp"} if form == "houlsby" else {"mlp"})
    for k in range(3):
        model = copy.deepcopy(task.backbone.model)
        for j, block in enumerate(model.blocks):
            for place, module in {"attention": block.attn, "mlp": block.mlp}.items():
                if place not in params["adapters"]:
                    continue
                own = {name: v[k, j] for name, v in params["adapters"][place].items()}

                def hook(module, given, out, own=own):
                    x = out if form == "houlsby" else given[0]
                    hidden = (x @ own["down"].T + own["down_bias"]).clamp(min=0)
                    scale = 1.0 if form == "houlsby" else 0.1
                    return out + scale * (hidden @ own["up"].T + own["up_bias"])

                module.register_forward_hook(hook)
        expected = model(_pixels(task, batch, k)) @ params["head"][k].T
        torch.testing.assert_close(actual[k], expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["fedavg", "fedavg_adapter"])
def test_the_proximal_term_is_half_mu_times_the_squared_distance(tiny, name):
    task, params, clients, batch = _case(tiny, name, mu=0.3)
    received = {"params": tensor_map(lambda v: v + 0.1 * torch.randn(v.shape).double(), params)}
    total, extras = _plugin(name).loss(task, params, received, clients, batch)
    for k in range(3):
        distance = 0.0
        start = dict(leaves(received["params"]))
        for path, value in leaves(params):
            distance += float(((value[k] - start[path][k]) ** 2).sum())
        added = total[k] - extras["reported_loss"][k]
        torch.testing.assert_close(added, torch.full_like(added, 0.15 * distance))
    plain = replace(task, options=SimpleNamespace(**{**vars(task.options), "mu": 0.0}))
    value, _ = _plugin(name).loss(plain, params, received, clients, batch)
    torch.testing.assert_close(value, extras["reported_loss"])


@pytest.mark.parametrize("train", ["", "bias$"])
def test_fedavg_steps_as_torch_does_and_weighs_by_images(tiny, train):
    """Clients take two steps on all of their images, with momentum, weight decay and clipping."""
    task, hooks = tiny("fedavg", train=train)
    training = {"epochs": 2, "batch_size": 64, "lr": 0.1, "clip": 0.5, "weight_decay": 0.01}
    task = with_training(doubled(task), **training)
    state = initial_state(task, hooks)
    start = state.server["params"]
    after, _ = train_round(task.at(1), hooks, state)
    ids = select_for_round(task.at(1), hooks, state)
    means = {path: torch.zeros_like(value) for path, value in leaves(start)}
    total = sum(len(task.data.train[k]) for k in ids)
    for client in ids:
        model = copy.deepcopy(task.backbone.model)
        head = start["head"].double().clone().requires_grad_()
        chosen = {n: p.requires_grad_() for n, p in model.named_parameters() if train[:-1] in n}
        trained = [head, *chosen.values()]
        optimizer = torch.optim.SGD(trained, 0.1, momentum=0.9, weight_decay=0.01)
        batch = task.data.batch([task.data.train[client]])
        for _ in range(2):
            optimizer.zero_grad()
            logits = model(task.backbone.pixels(batch.images[0])) @ head.T
            F.cross_entropy(logits, batch.labels[0]).backward()
            torch.nn.utils.clip_grad_norm_(trained, 0.5)
            optimizer.step()
        share = len(task.data.train[client]) / total
        means["head"] = means["head"] + share * head.detach()
        for name, value in chosen.items():
            means[f"weights/{name}"] = means[f"weights/{name}"] + share * value.detach()
    for path, value in leaves(after.server["params"]):
        torch.testing.assert_close(value, means[path], atol=1e-10, rtol=1e-10)
    assert all(("bias" in path) or path == "head" for path in means) is bool(train)


@pytest.mark.parametrize("name", ["singleset_full", "singleset_vpt"])
def test_a_client_alone_sends_nothing_and_does_not_notice_the_others(tiny, name):
    task, hooks = tiny(name)
    state = initial_state(task, hooks)
    after, row = train_round(task.at(1), hooks, state)
    assert row.bytes_up == row.bytes_down == 0 and after.server == {}
    client = sorted(after.clients)[1]
    fewer = replace(task.data, participating=[client])
    alone, _ = train_round(replace(task, data=fewer, clients_per_round=1).at(1), hooks, state)
    for (path, mine), (_, other) in zip(
        leaves(after.clients[client]), leaves(alone.clients[client]), strict=True
    ):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
        assert not torch.equal(mine, dict(leaves(hooks.init_client(task=task, client=0)))[path])


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("fedavg", {}, 85_798_656 + 76_800),  # 8.58 x 10^7 in pFedPG's Table 1
        ("fedavg", {"train": "bias$"}, 102_912 + 76_800),  # 0.1% of all (BitFit's 0.09% of BERT)
        ("fedlora", {}, 294_912 + 76_800),
        ("fedlora", {"shared": "b"}, 147_456 + 76_800),
        ("fedlora", {"shared": "a"}, 147_456),
        ("fedavg_adapter", {}, 24 * (2 * 64 * 768 + 64 + 768) + 76_800),
    ],
)
def test_communication(method, options, expected):
    counts = downlink_floats(method, "vit_base_patch16_224", 100, options)
    assert sum(counts.values()) == expected
    assert counts.get("head", 76_800) == 76_800 and len(counts) < 8


def test_large_models_train_and_are_evaluated_in_groups_that_fit(tiny):
    task, hooks = tiny("fedavg")
    whole, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    size = sum(4 * value.numel() for _, value in leaves(whole.server["params"]))
    seen = {"client_update": [], "predict": []}

    class Watched:
        takes = hooks.takes

        def __getattr__(self, name):
            def call(**given):
                if name in seen:
                    seen[name].append(len(given["clients"]))
                return getattr(hooks, name)(**given)

            return call

    losses = [row.loss for row in evaluate(task.at(1), hooks, whole)]
    for bytes_at_once, trained, evaluated in ((2 * size, [2, 1], 2), (size - 1, [1, 1, 1], 1)):
        task = with_limits(task, state_bytes=bytes_at_once)
        seen["client_update"] = []
        seen["predict"] = []
        parts, _ = train_round(task.at(1), Watched(), initial_state(task, hooks))
        again = [row.loss for row in evaluate(task.at(1), Watched(), whole)]
        assert seen["client_update"] == trained and max(seen["predict"]) == evaluated
        torch.testing.assert_close(again, losses, atol=1e-5, rtol=1e-5)
        for (_, a), (_, b) in zip(leaves(parts.server), leaves(whole.server), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_spec_names_gradient_checkpointing_only_where_it_is_on(monkeypatch):
    config = default_config()
    plain = Plan(resolve(config))
    on = Plan(resolve(config | {"study": config["study"] | {"gradient_checkpointing": True}}))
    specs = [plan.run_spec(study_runs(plan.settings)[0]) for plan in (plain, on)]
    assert "checkpointing" not in to_json(specs[0])
    backbones = [vit_module.load(spec.backbone.settings) for spec in specs]
    assert [backbone.gradient_checkpointing for backbone in backbones] == [False, True]
    assert on.settings.backbones == plain.settings.backbones, "caches do not depend on it"
