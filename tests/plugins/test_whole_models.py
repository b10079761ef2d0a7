"""Baselines that were published for whole models, against timm and autograd in float64."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import fedloom.toolbox as fl
from changed_task import with_training
from doubled import doubled, features, images_of, logits
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.trees import build, count_bytes
from fedloom.data.federation import shuffled_batches
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import leaves, stack, tensor_map
from first_round import first_cohort, module

LAST = r"^blocks\.11\.mlp\.fc2\.|^norm\."  # few weights, and some nonlinearity behind them
PLAIN = {
    "epochs": 1, "batch_size": 1000, "lr": 0.2, "momentum": 0.0, "weight_decay": 0.0, "clip": None,
}  # fmt: skip


@pytest.fixture
def case(tiny):
    """case(name, **options): a task in float64 whose epochs are steps of plain SGD, and hooks."""

    def make(name, epochs=1, **options):
        task, hooks = tiny(name, **{"train": LAST, **options})
        return with_training(doubled(task), **PLAIN | {"epochs": epochs}), hooks

    return make


def shaken(tree):
    return tensor_map(lambda v: v.double() + 0.3 * torch.randn(v.shape).double(), tree)


def random_case(task, hooks):
    """Random parameters [3, ...] in float64, what clients keep, and a batch of each."""
    received, clients, batch = first_cohort(task, hooks)
    clients = replace(clients, state=shaken(clients.state))
    return shaken(received["params"]), clients, batch


def part(tree, k):
    """Client k's, or component k's, part of a stacked tree."""
    return tensor_map(lambda v: v[k].detach(), tree)


def answers(task, pixels, model):
    """Logits by timm of a model {"head": ..., "weights": ...}."""
    return logits(task, pixels, model["head"], model.get("weights", {}))


def descend(model, loss, parts, steps, lr=0.2):
    """Plain gradient descent of some parts of a model."""
    for _ in range(steps):
        moving = {name: model[name] for name in parts}
        slopes = torch.func.grad(lambda own, rest: loss(rest | own))(moving, model)
        model = model | tensor_map(lambda v, slope: v - lr * slope, moving, slopes)
    return model


def slopes_of(value, params):
    """Gradient of a sum by parameter."""
    flat = dict(leaves(params))
    return build(zip(flat, torch.autograd.grad(value.sum(), flat.values()), strict=True))


def entropy(task, client):
    """The cross-entropy of a model on all of a client's training images."""
    pixels, labels = images_of(task, client)
    return lambda model: F.cross_entropy(answers(task, pixels, model), labels)


def close(actual, expected):
    # images and shares are float32
    torch.testing.assert_close(actual, expected, atol=1e-7, rtol=1e-6)


def mean_of(models, shares):
    return tensor_map(lambda *v: sum(s * x for s, x in zip(shares, v, strict=True)), *models)


def shares_of(task, ids, weighted):
    sizes = [len(task.data.train[k]) if weighted else 1 for k in ids]
    return [size / sum(sizes) for size in sizes]


# the trained weights are an option


@pytest.mark.parametrize("name", ["fedrep", "per_fedavg"])  # of others: golden numbers
def test_prompts_before_a_frozen_backbone_can_be_trained_instead(tiny, name):
    task, hooks = tiny(name, train="prompts", prompts=3)
    state, row = train_round(task.at(1), hooks, initial_state(task, hooks))
    names = {path.rpartition("/")[-1] for path, _ in leaves(state.server["params"])}
    assert names <= {"shared_prompts", "head"} and "shared_prompts" in names
    assert state.server["params"]["shared_prompts"].shape[-2:] == (3, 16)
    assert all(r.loss > 0 for r in evaluate(task.at(1), hooks, state)), row


@pytest.mark.parametrize("name", ["fedrep", "fedbabu", "centralised", "fedavg", "singleset_full"])
def test_what_cannot_be_trained_is_named(tiny, name):
    task, hooks = tiny(name, train="kernel")
    with pytest.raises(FedLoomError, match=f"{name}: option train: no weight has 'kernel'"):
        hooks.init_server(task=task)
        hooks.init_client(task=task, client=0)


@pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
def test_a_head_alone_is_no_body(tiny, name):
    task, hooks = tiny(name, train="head")
    with pytest.raises(FedLoomError, match=f"{name}: option train: a head alone has no body"):
        hooks.init_server(task=task)


# FedRep, FedBABU


@pytest.mark.parametrize("weighted", [False, True])
def test_fedrep_fits_heads_to_the_body_then_the_body_to_the_heads(case, weighted):
    task, hooks = case("fedrep", epochs=2, head_epochs=3, weighted=weighted)
    start, head = initial_state(task, hooks), torch.zeros(4, 16).double()
    body = start.server["params"]
    state, row = train_round(task.at(1), hooks, start)
    ids, bodies, losses = select_for_round(task.at(1), hooks, start), [], []
    for client in ids:
        model = {"head": head} | body
        for names, steps in ((["head"], 3), (["weights"], 2)):
            for _ in range(steps):
                losses.append(float(entropy(task, client)(model)))
                model = descend(model, entropy(task, client), names, 1)
        model = descend({"head": head} | body, entropy(task, client), ["head"], 3)
        close(state.clients[client]["head"], model["head"])
        model = descend(model, entropy(task, client), ["weights"], 2)
        bodies.append({"weights": model["weights"]})
    close(state.server["params"], mean_of(bodies, shares_of(task, ids, weighted)))
    assert row.bytes_up == 3 * count_bytes(body)
    assert row.train_loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    received, stranger, _ = first_cohort(task, hooks, [0], state.server)  # held out
    found = hooks.personalize(task=task.at(1), received=received, clients=stranger)["head"][0]
    model = {"head": head} | state.server["params"]
    close(found, descend(model, entropy(task, 0), ["head"], 3)["head"])


@pytest.mark.parametrize("tuned", ["all", "head"])
def test_fedbabu_trains_the_body_under_a_fixed_head_and_fine_tunes_it(case, monkeypatch, tuned):
    task, hooks = case("fedbabu", epochs=2, tuning_epochs=3, tuned=tuned, tuning_lr=0.3)
    head = fl.random_head(task).double()
    assert head.abs().max() <= 0.25 and head.std() == pytest.approx(0.25 / 3**0.5, rel=0.2)
    assert torch.equal(fl.random_head(task.at(7)).double(), head)
    monkeypatch.setattr(fl, "random_head", lambda task: head)
    start = initial_state(task, hooks)
    model = {"head": head} | start.server["params"]
    state, row = train_round(task.at(1), hooks, start)
    ids = select_for_round(task.at(1), hooks, start)
    trained = [descend(model, entropy(task, client), ["weights"], 2) for client in ids]
    model = mean_of(trained, shares_of(task, ids, True))
    close(state.server["params"], {"weights": model["weights"]})
    assert row.bytes_up == row.bytes_down == 3 * count_bytes(state.server["params"])
    received, clients, _ = first_cohort(task, hooks, [0], state.server)
    found = hooks.personalize(task=task.at(1), received=received, clients=clients)
    parts = ["head", "weights"] if tuned == "all" else ["head"]
    model = descend(model, entropy(task, 0), parts, 3, lr=0.3 * 0.2)
    close(part(found, 0), {name: model[name] for name in parts})
    at_9 = with_training(task, schedule="exponential", decay=0.5).at(9)
    again = hooks.personalize(task=at_9, received=received, clients=clients)
    close(again["head"][0], model["head"])  # all its images are one batch: in any order
    batch = task.data.batch([task.data.test[0]])
    answer = hooks.predict(
        task=task, received=received, clients=replace(clients, state=found), batch=batch
    )
    close(answer[0], answers(task, images_of(task, 0, "test")[0], model))


# FedRoD


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_fedrod_balances_the_generic_head_and_adds_a_personal_one(case, gamma):
    task, hooks = case("fedrod", gamma=gamma)
    params, clients, batch = random_case(task, hooks)
    params = tensor_map(torch.Tensor.requires_grad_, params | clients.state)
    value, extras = module("fedrod").loss(task, params, {}, clients, batch)
    slopes = slopes_of(value, params)
    for k, client in enumerate(clients.ids):
        model, labels = part(params, k), batch.labels[k]
        mine, images = model.pop("personal_head"), range(len(labels))
        pixels = task.backbone.pixels(batch.images[k])
        counts = torch.bincount(task.data.labels[task.data.train[client]], minlength=4).double()

        def balanced(model, pixels=pixels, counts=counts, labels=labels, images=images):
            scores = counts**gamma * answers(task, pixels, model).exp()
            return -(scores[images, labels] / scores.sum(1)).log()

        z = features(task, pixels, model["weights"])

        def personal(mine, z=z, head=model["head"], labels=labels, images=images):
            both = z @ (head + mine).T
            return both.logsumexp(1) - both[images, labels]

        close(value[k], balanced(model) + personal(mine))
        close(extras["reported_loss"][k], personal(mine))
        expected = torch.func.grad(lambda m: balanced(m).sum())(model)
        expected["personal_head"] = torch.func.grad(lambda m: personal(m).sum())(mine)
        close(part(slopes, k), expected)


def test_a_client_of_fedrod_answers_by_both_heads_and_the_server_by_the_generic_one(case):
    task, hooks = case("fedrod")
    params, clients, batch = random_case(task, hooks)
    answer = hooks.predict(task=task, received={"params": params}, clients=clients, batch=batch)
    server = cohort(task, [SERVER_MODEL], [shaken(hooks.init_client(task=task, client=1))])
    first = {"params": tensor_map(lambda v: v[:1], params)}
    one = task.data.batch([batch.index[0]])
    generic = hooks.predict(task=task, received=first, clients=server, batch=one)
    model, pixels = part(params, 0), task.backbone.pixels(batch.images[0])
    close(generic[0], answers(task, pixels, model))
    model["head"] = model["head"] + clients.state["personal_head"][0]
    close(answer[0], answers(task, pixels, model))
    stranger = hooks.init_client(task=task, client=0)["personal_head"]
    assert not stranger.any(), "who never trained answers by the generic head"


# Per-FedAvg


def slope_on(task, pixels, labels):
    """The gradient of a model's cross-entropy on some images."""
    return torch.func.grad(lambda model: F.cross_entropy(answers(task, pixels, model), labels))


@pytest.mark.parametrize(("variant", "count"), [("fo", 7), ("hf", 7), ("hf", 2)])
def test_a_step_of_per_fedavg_is_that_of_algorithm_1(case, variant, count):
    """With the exact Hessian, which `hf` approaches and `fo` leaves out."""
    task, hooks = case("per_fedavg", variant=variant, alpha=0.4, delta=1e-5)
    params, clients, _ = random_case(task, hooks)
    rows = [task.data.train[k][:count] for k in clients.ids]
    batch = task.data.batch(rows)
    found, _ = module("per_fedavg").meta_gradient(task, params, batch)
    parts = 2 if variant == "fo" else 3
    for k in range(3):
        model = part(params, k)
        pixels, labels = task.backbone.pixels(batch.images[k]), batch.labels[k]
        # a batch too small is used whole
        chosen = [slice(i, None, parts) if count >= parts else slice(None) for i in range(parts)]
        slopes = [slope_on(task, pixels[some], labels[some]) for some in chosen]
        adapted = tensor_map(lambda v, slope: v - 0.4 * slope, model, slopes[0](model))
        expected = slopes[1](adapted)
        if variant == "hf":
            _, curved = torch.func.jvp(slopes[2], (model,), (expected,))
            gap = max(value.abs().max() for _, value in leaves(curved))
            assert gap > 1e-4, "the Hessian matters here"
            expected = tensor_map(lambda v, slope: v - 0.4 * slope, expected, curved)
        torch.testing.assert_close(part(found, k), expected, atol=1e-8, rtol=1e-6)


def test_per_fedavg_trains_along_its_meta_gradient_and_adapts_before_a_test(case):
    task, hooks = case("per_fedavg", alpha=0.4, adaptation_steps=2)
    start = initial_state(task, hooks)
    model, stepped = start.server["params"], []
    state, _ = train_round(task.at(1), hooks, start)
    ids = select_for_round(task.at(1), hooks, start)
    for client in ids:
        rows = task.data.train[client]  # in the order of round 1
        rows = next(shuffled_batches(rows, 1000, 1, task.seed, 1, client, 0))
        batch = task.data.batch([rows])
        pixels, labels = task.backbone.pixels(batch.images[0]), batch.labels[0]
        own = slope_on(task, pixels[::2], labels[::2])(model)
        adapted = tensor_map(lambda v, slope: v - 0.4 * slope, model, own)
        slope = slope_on(task, pixels[1::2], labels[1::2])(adapted)
        stepped.append(tensor_map(lambda v, slope: v - 0.2 * slope, model, slope))
    after = state.server["params"]
    close(after, mean_of(stepped, [1 / len(ids)] * len(ids)))
    received, clients, _ = first_cohort(task, hooks, [0], state.server)
    found = hooks.personalize(task=task.at(1), received=received, clients=clients)
    close(part(found, 0), descend(after, entropy(task, 0), list(after), 2, lr=0.4))


# FedEM


def chances(task, models, m, pixels):
    return answers(task, pixels, part(models, m)).softmax(-1)


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
    ids = select_for_round(task.at(1), hooks, start)
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
    ids = select_for_round(task.at(1), hooks, start)
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

            def loss(model, m=m, q=q, pixels=pixels, labels=labels):
                scores = answers(task, pixels, model)
                return (q[m] * F.cross_entropy(scores, labels, reduction="none")).mean()

            trained = descend(part(models, m), loss, ["head", "weights"], 1)
            close(part(updates[k].payload["params"], m), trained)


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
    task = with_training(task, clip=1e-4)
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
            models = [part(moved, m) for m in range(2)]
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
    means, ids = state.server["means"], select_for_round(task.at(1), hooks, start)
    assert means["known"].nonzero()[:, 0].tolist() == ids
    for client in ids:
        images, labels = means_of(task, client)
        torch.testing.assert_close(means["images"][client, 0].double(), images)
        torch.testing.assert_close(means["labels"][client, 0].double(), labels)
    _, row = train_round(task.at(2), hooks, state)
    image, counted = 16 * 16 * 4, {r.bytes_down for r in row.updates}
    model = sum(4 * v.numel() for _, v in leaves(state.server["params"]))
    assert counted == {model + len(ids) * (image + 4 * 4)}, "the means that there are"
    two, _ = tiny("fedmix", means=2)
    both = module("fedmix").own_means(two, 1)["images"]
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
    draw = module("fedmix").draw
    batch = task.data.batch([task.data.train[k][:3] for k in (1, 2)])
    seen = set()
    for step in range(40):
        batch.seen = (step, step)
        images, _ = draw(task.at(1), received, clients, batch)
        again, _ = draw(task.at(1), received, clients, batch)
        assert torch.equal(images, again)
        one = replace(batch, seen=(step,))
        alone, _ = draw(task.at(1), received, clients.subset([1]), one)
        assert torch.equal(alone[0], images[1]), "regardless of the cohort"
        seen |= {int(image.mean()) for image in images}
    assert seen == {6, 7, 10, 11}


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
    value, extras = module("fedmix").loss(task, params, received, clients, batch)
    slopes = slopes_of(value, params)
    black = task.backbone.pixels(torch.zeros(1, 16, 16, 1))
    other = task.backbone.pixels(means["images"][0]) - black
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for k in range(3):
            model = tensor_map(torch.Tensor.requires_grad_, part(params, k))
            x = black + 0.7 * (task.backbone.pixels(batch.images[k]) - black)
            x, labels = x.requires_grad_(), batch.labels[k]
            scores = answers(task, x, model)
            own = 0.7 * F.cross_entropy(scores, labels, reduction="none")
            (slope,) = torch.autograd.grad(own.sum(), x, create_graph=True)
            two = own - 0.3 * scores.log_softmax(-1) @ means["labels"][0, 0]
            expected = two + 0.3 * (slope * other).sum((1, 2, 3))
            close(extras["reported_loss"][k], two)
            close(value[k], expected)
            close(part(slopes, k), slopes_of(expected, model))


# one model on all images


@pytest.mark.parametrize("train", [LAST, "head"])
def test_centralised_training_is_that_of_one_client_with_all_images(case, train):
    task, hooks = case("centralised", epochs=2, train=train)
    task = with_training(task, optimizer="sgd")
    start = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, start)
    assert row.clients == 1
    pictures = [images_of(task, k) for k in task.data.participating]
    pixels, labels = (torch.cat(parts) for parts in zip(*pictures, strict=True))
    model = start.server["params"]
    trained = descend(
        model, lambda model: F.cross_entropy(answers(task, pixels, model), labels), list(model), 2
    )
    close(state.server["params"], trained)
