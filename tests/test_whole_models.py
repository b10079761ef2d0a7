"""Baselines that were published for whole models, against timm and autograd in float64."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import fedloom.toolbox as fl
from clip_by_hand import first_cohort
from doubled import doubled, features, images_of, logits
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.data.federation import shuffled_batches
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, select, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import leaves, stack, tensor_map

LAST = r"^blocks\.11\.mlp\.fc2\.|^norm\."  # few weights, and some nonlinearity behind them
PLAIN = {
    "epochs": 1, "batch_size": 1000, "lr": 0.2, "momentum": 0.0, "weight_decay": 0.0, "clip": None,
}  # fmt: skip


def plugin(name):
    return sys.modules[f"fedloom_plugins.{name}.plugin"]


@pytest.fixture
def case(tiny):
    """case(name, **options): a task in float64 whose epochs are steps of plain SGD, and hooks."""

    def make(name, epochs=1, **options):
        task, hooks = tiny(name, **{"train": LAST, **options})
        training = SimpleNamespace(**vars(task.training) | PLAIN | {"epochs": epochs})
        return replace(doubled(task), training=training), hooks

    return make


def shaken(tree):
    return tensor_map(lambda v: v.double() + 0.3 * torch.randn(v.shape).double(), tree)


def random_case(task, hooks):
    """Random parameters [3, ...] in float64, what clients keep, and a batch of each."""
    received, clients, batch = first_cohort(task, hooks)
    clients = replace(clients, state=shaken(clients.state))
    return shaken(received["params"]), clients, batch


def descend(params, loss, names, steps, lr=0.2):
    """Plain gradient descent of some tensors of a flat dict, by autograd."""
    params = {name: value.detach().clone() for name, value in params.items()}
    for _ in range(steps):
        for name in names:
            params[name].requires_grad_()
        slopes = torch.autograd.grad(loss(params), [params[name] for name in names])
        params = {name: value.detach() for name, value in params.items()}
        for name, slope in zip(names, slopes, strict=True):
            params[name] = params[name] - lr * slope
    return params


def entropy(task, client):
    """The cross-entropy on all of a client's training images, of {"head": ..., name: weight}."""
    pixels, labels = images_of(task, client)

    def loss(params):
        weights = {name: value for name, value in params.items() if name != "head"}
        return F.cross_entropy(logits(task, pixels, params["head"], weights), labels)

    return loss


def close(actual, expected):
    torch.testing.assert_close(
        actual, expected, atol=1e-7, rtol=1e-6
    )  # images and shares are float32


def close_trees(actual, expected):
    assert [path for path, _ in leaves(actual)] == [path for path, _ in leaves(expected)]
    for (_, one), (_, other) in zip(leaves(actual), leaves(expected), strict=True):
        close(one, other)


def shares_of(task, ids, weighted):
    sizes = [len(task.data.train[k]) if weighted else 1 for k in ids]
    return [size / sum(sizes) for size in sizes]


# what is trained is an option


@pytest.mark.parametrize("name", ["fedrep", "fedbabu", "fedrod", "per_fedavg", "fedem", "fedmix"])
def test_prompts_before_a_frozen_backbone_can_be_trained_instead(tiny, name):
    task, hooks = tiny(name, train="prompts", prompts=3)
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    names = {path.rpartition("/")[-1] for path, _ in leaves(state.server["params"])}
    assert names <= {"shared_prompts", "head"} and "shared_prompts" in names
    assert state.server["params"]["shared_prompts"].shape[-2:] == (3, 16)
    assert all(r["loss"] > 0 for r in evaluate(task.at(1), hooks, state)), row


@pytest.mark.parametrize("name", ["fedrep", "fedbabu", "centralised"])
def test_what_cannot_be_trained_is_named(tiny, name):
    task, hooks = tiny(name, train="kernel")
    with pytest.raises(FedLoomError, match=f"{name}: option train: no weight has 'kernel'"):
        hooks.init_server(task=task)


@pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
def test_a_head_alone_is_no_body(tiny, name):
    task, hooks = tiny(name, train="head")
    with pytest.raises(FedLoomError, match=f"{name}: option train: a head alone has no body"):
        hooks.init_server(task=task)


# FedRep, FedBABU


@pytest.mark.parametrize("weighted", [False, True])
def test_fedrep_fits_heads_to_the_body_then_the_body_to_the_heads(case, weighted):
    task, hooks = case("fedrep", epochs=2, head_epochs=3, weighted=weighted)
    start = initial_state(task, hooks)
    body = start.server["params"]["weights"]
    state, row = train_round(task.at(1), hooks, start)
    ids = select(task.at(1), hooks, start)
    mean = tensor_map(torch.zeros_like, body)
    for client, share in zip(ids, shares_of(task, ids, weighted), strict=True):
        params = {"head": torch.zeros(4, 16).double(), **body}
        params = descend(params, entropy(task, client), ["head"], 3)
        head = params["head"]
        params = descend(params, entropy(task, client), list(body), 2)
        close(state.clients[client]["head"], head)
        mean = {name: value + share * params[name] for name, value in mean.items()}
    close_trees(state.server["params"], {"weights": mean})
    assert row["bytes_up"] == 3 * sum(8 * value.numel() for value in body.values())
    received = stack([{"params": state.server["params"]}])
    stranger = cohort(task, [0], [hooks.init_client(task=task, client=0)])  # held out
    found = hooks.personalize(task=task.at(1), received=received, clients=stranger)["head"][0]
    params = {"head": torch.zeros(4, 16).double(), **state.server["params"]["weights"]}
    close(found, descend(params, entropy(task, 0), ["head"], 3)["head"])


@pytest.mark.parametrize("tuned", ["all", "head"])
def test_fedbabu_trains_the_body_under_a_fixed_head_and_fine_tunes_it(case, monkeypatch, tuned):
    task, hooks = case("fedbabu", epochs=2, tuning_epochs=3, tuned=tuned, tuning_lr=0.3)
    head = fl.random_head(task).double()
    assert head.abs().max() <= 0.25 and head.std() == pytest.approx(0.25 / 3**0.5, rel=0.2)
    assert torch.equal(fl.random_head(task.at(7)).double(), head)
    monkeypatch.setattr(fl, "random_head", lambda task: head)
    start = initial_state(task, hooks)
    body = start.server["params"]["weights"]
    state, row = train_round(task.at(1), hooks, start)
    ids = select(task.at(1), hooks, start)
    mean = tensor_map(torch.zeros_like, body)
    for client, share in zip(ids, shares_of(task, ids, True), strict=True):
        params = descend({"head": head, **body}, entropy(task, client), list(body), 2)
        mean = {name: value + share * params[name] for name, value in mean.items()}
    close_trees(state.server["params"], {"weights": mean})
    assert row["bytes_up"] == row["bytes_down"] == 3 * sum(8 * v.numel() for v in body.values())
    received, clients = stack([{"params": state.server["params"]}]), cohort(task, [0], [{}])
    found = hooks.personalize(task=task.at(1), received=received, clients=clients)
    names = ["head", *body] if tuned == "all" else ["head"]
    params = descend({"head": head, **mean}, entropy(task, 0), names, 3, lr=0.3 * 0.2)
    close(found["head"][0], params["head"])
    assert ("weights" in found) is (tuned == "all")
    later = SimpleNamespace(**vars(task.training) | {"schedule": "exponential", "decay": 0.5})
    at_9 = replace(task, training=later).at(9)
    again = hooks.personalize(task=at_9, received=received, clients=clients)
    close(again["head"][0], params["head"])  # all its images are one batch: in any order
    batch = task.data.batch([task.data.test[0]])
    answer = hooks.predict(
        task=task, received=received, clients=replace(clients, state=found), batch=batch
    )
    pixels, _ = images_of(task, 0, "test")
    weights = {name: value for name, value in params.items() if name != "head"}
    close(answer[0], logits(task, pixels, params["head"], weights))


# FedRoD


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_fedrod_balances_the_generic_head_and_adds_a_personal_one(case, gamma):
    task, hooks = case("fedrod", gamma=gamma)
    params, clients, batch = random_case(task, hooks)
    params = {**params, **clients.state}
    params = tensor_map(lambda v: v.detach().requires_grad_(), params)
    value, extras = plugin("fedrod").loss(task, params, {}, clients, batch)
    flat = [leaf for _, leaf in leaves(params)]
    paths = [path for path, _ in leaves(params)]
    slopes = dict(zip(paths, torch.autograd.grad(value.sum(), flat), strict=True))
    for k, client in enumerate(clients.ids):
        own = {name: v[k].detach().requires_grad_() for name, v in params["weights"].items()}
        head, mine = (params[n][k].detach().requires_grad_() for n in ("head", "personal_head"))
        z = features(task, task.backbone.pixels(batch.images[k]), own)
        counts = torch.bincount(task.data.labels[task.data.train[client]], minlength=4).double()
        balanced = personal = 0.0
        for i, label in enumerate(batch.labels[k].tolist()):
            scores = (counts**gamma) * (head @ z[i]).exp()
            one = -(scores[label] / scores.sum()).log()
            both = head.detach() @ z[i].detach() + mine @ z[i].detach()
            other = both.logsumexp(0) - both[label]
            close(value[k, i], one + other)
            close(extras["reported_loss"][k, i], other)
            balanced, personal = balanced + one, personal + other
        generic = torch.autograd.grad(balanced, [head, *own.values()])
        close(slopes["head"][k], generic[0])
        for name, slope in zip(own, generic[1:], strict=True):
            close(slopes[f"weights/{name}"][k], slope)
        (expected,) = torch.autograd.grad(personal, [mine])
        close(slopes["personal_head"][k], expected)


def test_a_client_of_fedrod_answers_by_both_heads_and_the_server_by_the_generic_one(case):
    task, hooks = case("fedrod")
    params, clients, batch = random_case(task, hooks)
    answer = hooks.predict(task=task, received={"params": params}, clients=clients, batch=batch)
    server = cohort(task, [SERVER_MODEL], [shaken(hooks.init_client(task=task, client=1))])
    one = task.data.batch([task.data.test[0]])
    first = {"params": tensor_map(lambda v: v[:1], params)}
    generic = hooks.predict(task=task, received=first, clients=server, batch=one)
    weights = tensor_map(lambda v: v[0], params["weights"])
    z = features(task, task.backbone.pixels(batch.images[0]), weights)
    close(answer[0], z @ (params["head"][0] + clients.state["personal_head"][0]).T)
    pixels, _ = images_of(task, 0, "test")
    close(generic[0], logits(task, pixels, params["head"][0], weights))
    stranger = hooks.init_client(task=task, client=0)["personal_head"]
    assert not stranger.any(), "who never trained answers by the generic head"


# Per-FedAvg


def gradient(task, params, pixels, labels):
    def loss(params):
        weights = {name: value for name, value in params.items() if name != "head"}
        return F.cross_entropy(logits(task, pixels, params["head"], weights), labels)

    return torch.func.grad(loss)(params)


@pytest.mark.parametrize(("variant", "count"), [("fo", 7), ("hf", 7), ("hf", 2)])
def test_a_step_of_per_fedavg_is_that_of_algorithm_1(case, variant, count):
    """With the exact Hessian, which `hf` approaches and `fo` leaves out."""
    task, hooks = case("per_fedavg", variant=variant, alpha=0.4, delta=1e-5)
    params, clients, _ = random_case(task, hooks)
    rows = [task.data.train[k][:count] for k in clients.ids]
    batch = task.data.batch(rows)
    found, _ = plugin("per_fedavg").meta_gradient(task, params, batch)
    parts = 2 if variant == "fo" else 3
    for k in range(3):
        flat = {"head": params["head"][k], **{n: v[k] for n, v in params["weights"].items()}}
        pixels, labels = task.backbone.pixels(batch.images[k]), batch.labels[k]
        whole = [slice(None)] * parts  # a batch too small is used whole
        chosen = [slice(i, None, parts) for i in range(parts)] if count >= parts else whole
        own = gradient(task, flat, pixels[chosen[0]], labels[chosen[0]])
        adapted = {name: value - 0.4 * own[name] for name, value in flat.items()}
        expected = gradient(task, adapted, pixels[chosen[1]], labels[chosen[1]])
        if variant == "hf":
            third = chosen[2]
            _, curved = torch.func.jvp(
                lambda p, third=third: gradient(task, p, pixels[third], labels[third]),  # noqa: B023
                (flat,),
                (expected,),
            )
            gap = max(curved[name].abs().max() for name in flat)
            assert gap > 1e-4, "the Hessian matters here"
            expected = {name: value - 0.4 * curved[name] for name, value in expected.items()}
        for name, value in expected.items():
            actual = found["head"][k] if name == "head" else found["weights"][name][k]
            torch.testing.assert_close(actual, value, atol=1e-8, rtol=1e-6)


def test_per_fedavg_trains_along_its_meta_gradient_and_adapts_before_a_test(case):
    task, hooks = case("per_fedavg", alpha=0.4, adaptation_steps=2)
    start = initial_state(task, hooks)
    params = start.server["params"]
    state, _ = train_round(task.at(1), hooks, start)
    ids = select(task.at(1), hooks, start)
    flat = {"head": params["head"], **params["weights"]}
    mean = tensor_map(torch.zeros_like, flat)
    for client in ids:
        batch = task.data.batch([_order(task, client)])
        pixels, labels = task.backbone.pixels(batch.images[0]), batch.labels[0]
        own = gradient(task, flat, pixels[::2], labels[::2])
        adapted = {name: value - 0.4 * own[name] for name, value in flat.items()}
        slope = gradient(task, adapted, pixels[1::2], labels[1::2])
        mean = {n: v + (flat[n] - 0.2 * slope[n]) / len(ids) for n, v in mean.items()}
    after = {"head": state.server["params"]["head"], **state.server["params"]["weights"]}
    close_trees(after, mean)
    received, clients = stack([{"params": state.server["params"]}]), cohort(task, [0], [{}])
    found = hooks.personalize(task=task.at(1), received=received, clients=clients)
    adapted = descend(after, entropy(task, 0), list(after), 2, lr=0.4)
    close(found["head"][0], adapted["head"])
    for name in params["weights"]:
        close(found["weights"][name][0], adapted[name])


def _order(task, client):
    """The order in which a client sees its images in round 1."""
    rows = task.data.train[client]
    return next(shuffled_batches(rows, 1000, 1, task.seed, 1, client, 0))


# FedEM


def chances(task, models, m, pixels):
    weights = {name: value[m] for name, value in models["weights"].items()}
    return logits(task, pixels, models["head"][m], weights).softmax(-1)


def test_models_of_fedem_start_from_one_backbone_with_heads_that_differ(case):
    task, hooks = case("fedem", components=3, head="drawn")
    models = hooks.init_server(task=task)["params"]
    assert all(torch.equal(v[0], v[2]) for v in models["weights"].values())
    assert not torch.equal(models["head"][0], models["head"][1])
    assert hooks.init_client(task=task, client=1)["weights"].tolist() == pytest.approx([1 / 3] * 3)


def test_from_heads_of_zeros_the_clients_mixtures_tell_the_models_of_fedem_apart(case):
    task, hooks = case("fedem", components=3)
    start = initial_state(task, hooks)
    models = start.server["params"]["head"]
    assert not models.any(), "as the heads of all methods"
    mixtures = torch.stack(
        [hooks.init_client(task=task, client=k)["weights"] for k in range(1000)]
    ).double()
    close(mixtures.sum(1), torch.ones(1000).double())
    assert (mixtures.mean(0) - 1 / 3).abs().max() < 0.03  # uniform over mixtures: variance 1 / 18
    assert (mixtures.var(0) - 1 / 18).abs().max() < 0.006
    unseen = hooks.unseen_client_state(task=task, client=9, received={}, states={})["weights"]
    assert unseen.tolist() == pytest.approx([1 / 3] * 3)
    ids = select(task.at(1), hooks, start)
    clients = cohort(task, ids, [{"weights": mixtures[k]} for k in ids])
    received = stack([{"params": start.server["params"]}] * len(ids))
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    heads = hooks.aggregate(task=task.at(1), server=start.server, updates=updates)["params"]["head"]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (heads[one] - heads[other]).norm() > 0.1 * heads[one].norm()


def test_a_round_of_fedem_is_an_e_step_and_an_m_step(case):
    task, hooks = case("fedem", components=2, newcomer_steps=3, head="drawn")
    torch.manual_seed(1)
    start = initial_state(task, hooks)
    models = shaken(start.server["params"])
    start = replace(start, server={"params": models})
    prior = torch.tensor([0.7, 0.3]).double()
    ids = select(task.at(1), hooks, start)
    received = stack([{"params": models}] * 3)
    clients = cohort(task, ids, [{"weights": prior}] * 3)
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    newcomers = hooks.personalize(task=task.at(1), received=received, clients=clients)["weights"]
    for k, client in enumerate(ids):
        pixels, labels = images_of(task, client)
        likely = torch.stack([chances(task, models, m, pixels) for m in range(2)])  # [M, n, C]
        likely = likely[:, range(len(labels)), labels]  # [M, n]

        def e_step(pi, likely=likely):
            joint = pi[:, None] * likely
            return joint / joint.sum(0)

        q = e_step(prior)
        close(updates[k].client_state["weights"], q.mean(1))
        pi = prior
        for _ in range(3):
            pi = e_step(pi).mean(1)
        close(newcomers[k], pi)
        assert q[0].std() > 0.05, "images differ in who is responsible"
        for m in range(2):
            flat = {"head": models["head"][m], **{n: v[m] for n, v in models["weights"].items()}}

            def loss(params, m=m, q=q, pixels=pixels, labels=labels):
                weights = {name: value for name, value in params.items() if name != "head"}
                scores = logits(task, pixels, params["head"], weights)
                return (q[m] * F.cross_entropy(scores, labels, reduction="none")).mean()

            trained = descend(flat, loss, list(flat), 1)
            close(updates[k].payload["params"]["head"][m], trained["head"])
            for name in models["weights"]:
                close(updates[k].payload["params"]["weights"][name][m], trained[name])


def test_fedem_answers_by_the_mixture_of_probabilities(case):
    task, hooks = case("fedem", components=3)
    models = shaken(hooks.init_server(task=task)["params"])
    prior = torch.tensor([0.6, 0.3, 0.1]).double()
    clients = cohort(task, [2], [{"weights": prior}])
    batch = task.data.batch([task.data.test[2]])
    given = {"task": task, "received": {"params": stack([models])}, "batch": batch}
    answer = hooks.predict(clients=clients, **given)[0]
    pixels, _ = images_of(task, 2, "test")
    mixed = sum(prior[m] * chances(task, models, m, pixels) for m in range(3))
    close(answer.exp(), mixed)


@pytest.mark.parametrize("name", ["fedrod", "fedem"])
def test_models_that_are_trained_side_by_side_are_clipped_each_by_its_own_norm(case, name):
    task, hooks = case(name, **({"components": 2} if name == "fedem" else {}))
    task = replace(task, training=SimpleNamespace(**vars(task.training) | {"clip": 1e-4}))
    torch.manual_seed(1)
    start = shaken(initial_state(task, hooks).server["params"])
    received = stack([{"params": start}] * 2)
    states = [hooks.init_client(task=task, client=k) for k in (1, 2)]
    clients = cohort(task, [1, 2], [tensor_map(lambda v: v.double(), s) for s in states])
    for update in hooks.client_update(task=task.at(1), received=received, clients=clients):
        moved = tensor_map(torch.sub, update.payload["params"], start)
        if name == "fedrod":
            models = [moved, {"head": update.client_state["personal_head"]}]  # which was zero
        else:
            models = [tensor_map(lambda v, m=m: v[m], moved) for m in range(2)]
        for model in models:
            norm = sum(v.square().sum() for _, v in leaves(model)).sqrt()
            assert float(norm) == pytest.approx(0.2 * 1e-4, rel=0.02)  # lr * clip


# FedMix


def means_of(task, client):
    rows = task.data.train[client]
    images = torch.from_numpy(task.data.store.images(rows).copy()).double().mean(0)
    labels = task.data.labels[torch.from_numpy(rows)]
    return images, F.one_hot(labels, 4).double().mean(0)


def test_clients_of_fedmix_exchange_means_of_images_and_labels(tiny):
    task, hooks = tiny("fedmix", train=LAST)
    start = initial_state(task, hooks)
    state, _ = train_round(task.at(1), hooks, start)
    means, ids = state.server["means"], select(task.at(1), hooks, start)
    assert means["known"].nonzero()[:, 0].tolist() == ids
    for client in ids:
        images, labels = means_of(task, client)
        torch.testing.assert_close(means["images"][client, 0].double(), images)
        torch.testing.assert_close(means["labels"][client, 0].double(), labels)
    _, row = train_round(task.at(2), hooks, state)
    image, counted = 16 * 16 * 4, {r["bytes_down"] for r in row["updates"]}
    model = sum(4 * v.numel() for _, v in leaves(state.server["params"]))
    assert counted == {model + len(ids) * (image + 4 * 4)}, "the means that there are"
    two, _ = tiny("fedmix", means=2)
    both = plugin("fedmix").own_means(two, 1)["images"]
    rows = two.data.train[1]
    for part, mean in enumerate(both):
        half = torch.from_numpy(two.data.store.images(rows[part::2]).copy()).float().mean(0)
        torch.testing.assert_close(mean, half)


def test_every_step_of_every_client_draws_a_known_mean(tiny):
    task, hooks = tiny("fedmix", train=LAST, means=2)
    server = initial_state(task, hooks).server
    server["means"]["images"] += torch.arange(12.0).view(6, 2, 1, 1, 1)  # which mean it is
    server["means"]["known"][[3, 5]] = True
    means = hooks.download(task=task, server=server, client=1)["constants"]["means"]
    clients = cohort(task, [1, 2], [{}, {}])
    received = stack([{"means": means}] * 2)["means"]
    draw = plugin("fedmix").draw
    batch = task.data.batch([task.data.train[k][:3] for k in (1, 2)])
    seen = set()
    for step in range(40):
        batch.seen = (step, step)
        images, _ = draw(task.at(1), received, clients, batch)
        again, _ = draw(task.at(1), received, clients, batch)
        assert torch.equal(images, again)
        alone, _ = draw(task.at(1), received, clients.subset([1]), _one(batch, step))
        assert torch.equal(alone[0], images[1]), "whoever else is in the cohort"
        seen |= {int(image.mean()) for image in images}
    assert seen == {6, 7, 10, 11}


def _one(batch, step):
    return replace(batch, seen=(step,))


def test_the_loss_of_fedmix_is_mixup_to_first_order(case):
    """In pixels, by forward-mode differentiation of timm's model."""
    task, hooks = case("fedmix", ratio=0.3)
    params, clients, batch = random_case(task, hooks)
    batch.seen = (0, 0, 0)
    server = initial_state(task, hooks).server
    server["means"]["images"][4, 0] = torch.rand(16, 16, 1) * 255
    server["means"]["labels"][4, 0] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    server["means"]["known"][4] = True
    means = hooks.download(task=task, server=server, client=1)["constants"]["means"]
    means = tensor_map(lambda v: v.double() if v.is_floating_point() else v, means)
    received = stack([{"constants": {"means": means}}] * 3)
    params = tensor_map(lambda v: v.requires_grad_(), params)
    value, extras = plugin("fedmix").loss(task, params, received, clients, batch)
    flat = [v for _, v in leaves(params)]
    slopes = dict(
        zip([p for p, _ in leaves(params)], torch.autograd.grad(value.sum(), flat), strict=True)
    )
    black = task.backbone.pixels(torch.zeros(1, 16, 16, 1))
    other = task.backbone.pixels(means["images"][0]) - black
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for k in range(3):
            weights = {n: v[k].detach().requires_grad_() for n, v in params["weights"].items()}
            head = params["head"][k].detach().requires_grad_()
            x = black + 0.7 * (task.backbone.pixels(batch.images[k]) - black)
            labels = batch.labels[k]

            def own(x, weights=weights, head=head, labels=labels):
                scores = logits(task, x, head, weights)
                return 0.7 * F.cross_entropy(scores, labels, reduction="none")

            x = x.requires_grad_()
            (slope,) = torch.autograd.grad(own(x).sum(), x, create_graph=True)
            soft = logits(task, x, head, weights).log_softmax(-1) @ means["labels"][0, 0]
            two = own(x) - 0.3 * soft
            expected = two + 0.3 * (slope * other).sum((1, 2, 3))
            close(extras["reported_loss"][k], two)
            close(value[k], expected)
            first = torch.autograd.grad(expected.sum(), [head, *weights.values()])
            close(slopes["head"][k], first[0])
            for name, found in zip(weights, first[1:], strict=True):
                close(slopes[f"weights/{name}"][k], found)


# one model on all images


@pytest.mark.parametrize("train", [LAST, "prompts", "head"])
def test_centralised_training_is_that_of_one_client_with_all_images(case, train):
    task, hooks = case("centralised", epochs=2, train=train)
    task.training.optimizer = "sgd"
    start = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, start)
    assert row["clients"] == 1
    pictures = [images_of(task, k) for k in task.data.participating]
    pixels, labels = (torch.cat(parts) for parts in zip(*pictures, strict=True))
    params = start.server["params"]
    flat = {"head": params["head"], **params.get("weights", {})}
    if train == "prompts":
        assert not torch.equal(state.server["params"]["shared_prompts"], params["shared_prompts"])
        return

    def loss(params):
        weights = {name: value for name, value in params.items() if name != "head"}
        return F.cross_entropy(logits(task, pixels, params["head"], weights), labels)

    trained = descend(flat, loss, list(flat), 2)
    after = state.server["params"]
    close_trees({"head": after["head"], **after.get("weights", {})}, trained)
