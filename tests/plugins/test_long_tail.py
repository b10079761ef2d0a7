"""CReFF and FEDIC against loops and autograd in float64, and the optimisers of the server."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedloom.toolbox as fl
from changed_task import with_training
from doubled import doubled, features, images_of, logits
from fedloom.backbones import resnet
from fedloom.common.errors import FedLoomError
from fedloom.contract.tiny import tiny_task
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from fedloom.toolbox import Update, leaves, tensor_map
from first_round import first_cohort, module

LAST = r"^blocks\.11\.mlp\.fc2\.|^norm\."


def plugin(name):
    return sys.modules[f"fedloom_plugins.{name}.plugin"]


def shaken(tree):
    return tensor_map(
        lambda v: v.double() + 0.3 * torch.randn(v.shape).double() if v.is_floating_point() else v,
        tree,
    )


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-8, rtol=1e-7)


@pytest.fixture
def case(tiny):
    """Return case(name, **options): a task in float64 with few trained weights, and its hooks."""

    def make(name, **options):
        task, hooks = tiny(name, train=LAST, **options)
        return doubled(task), hooks

    return make


# CReFF


def test_a_client_sends_the_classifiers_gradient_for_each_class_that_it_has(case):
    task, hooks = case("creff")
    received, clients, _ = first_cohort(task, hooks)
    received = shaken(received)
    found, known = plugin("creff").real_gradients(task, received, clients)
    assert found.shape == (3, 4, 4, 16) and known.sum() < 12, "some lack some"
    for k, client in enumerate(clients.ids):
        pixels, labels = images_of(task, client)
        weights = tensor_map(lambda v: v[k], received["params"]["weights"])  # noqa: B023
        z = features(task, pixels, weights)
        for c in range(4):
            mine = labels == c
            assert bool(known[k, c]) is bool(mine.any())
            if not mine.any():
                assert not found[k, c].any()
                continue
            head = received["constants"]["retrained"][k].clone().requires_grad_()
            loss = F.cross_entropy(z[mine] @ head.T, labels[mine])
            (expected,) = torch.autograd.grad(loss, head)
            close(found[k, c], expected)


def test_federated_features_move_so_that_their_gradients_point_alike(case):
    task, _ = case("creff", matching_steps=2, feature_lr=0.7)
    torch.manual_seed(0)
    z, head, target = (torch.randn(*s).double() for s in ((4, 5, 16), (4, 16), (4, 4, 16)))
    known = torch.tensor([True, False, True, True])
    creff = plugin("creff")
    expected = z.clone()
    for _ in range(2):
        own = expected.clone().requires_grad_()
        total = 0.0
        for c in (0, 2, 3):
            classifier = head.clone().requires_grad_()
            loss = F.cross_entropy(own[c] @ classifier.T, torch.full((5,), c))
            (slope,) = torch.autograd.grad(loss, classifier, create_graph=True)
            for row in range(4):
                total = total + 1 - F.cosine_similarity(slope[row], target[c, row], dim=0)
        expected = expected - 0.7 * torch.autograd.grad(total, own)[0]
    found = creff.match(task, z, head, target, known)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)  # 1e-6 beside the norms
    assert torch.equal(found[1], z[1]), "of a class that nobody has"
    apart = [
        creff.distance(creff.head_gradients(each, head), target)[known].sum() for each in (z, found)
    ]
    assert apart[1] < apart[0]


def test_the_classifier_is_trained_anew_on_features_of_all_classes(case):
    task, _ = case("creff", retraining_epochs=3, retraining_lr=0.5, retraining_batch=100)
    torch.manual_seed(0)
    z = torch.randn(4, 5, 16).double()
    start = fl.random_head(task, 2).double()
    expected = start.clone()
    labels = torch.arange(4).repeat_interleave(5)
    for _ in range(3):
        head = expected.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(z.flatten(0, 1) @ head.T, labels), head)
        expected = expected - 0.5 * slope
    found = plugin("creff").retrain(task.at(2), z.float())
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    assert not torch.equal(start, fl.random_head(task, 3).double())


def test_the_server_averages_the_gradients_of_the_clients_that_have_a_class(tiny, monkeypatch):
    task, hooks = tiny("creff", train=LAST)
    server = initial_state(task, hooks).server
    torch.manual_seed(0)
    gradients = torch.randn(2, 4, 4, 16)
    known = torch.tensor([[True, True, False, False], [True, False, True, False]])
    gradients[~known] = 0
    updates = [
        Update({"params": server["params"], "gradients": g, "known": n}, {}, examples, {}, client=k)
        for k, (g, n, examples) in enumerate(zip(gradients, known, (3, 9), strict=True))
    ]
    given = {}

    def watched(task, features, head, target, mine):
        given.update(head=head, target=target, known=mine)
        return features + 1

    monkeypatch.setattr(plugin("creff"), "match", watched)
    after = hooks.aggregate(task=task.at(1), server=server, updates=updates)
    torch.testing.assert_close(given["target"][0], gradients[:, 0].mean(0))
    torch.testing.assert_close(given["target"][1], gradients[0, 1])
    torch.testing.assert_close(given["target"][2], gradients[1, 2])
    assert given["known"].tolist() == [True, True, True, False]
    assert torch.equal(given["head"], server["constants"]["retrained"])
    assert torch.equal(after["features"], server["features"] + 1)
    expected = plugin("creff").retrain(task.at(1), after["features"])
    assert torch.equal(after["constants"]["retrained"], expected)


def test_creff_trains_with_the_averaged_head_and_answers_by_the_retrained_one(case):
    task, hooks = case("creff")
    received, clients, batch = first_cohort(task, hooks)
    received = shaken(received)
    answer = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    weights = tensor_map(lambda v: v[0], received["params"]["weights"])
    head = received["constants"]["retrained"][0]
    torch.testing.assert_close(
        answer[0], logits(task, task.backbone.pixels(batch.images[0]), head, weights)
    )
    task = with_training(task, lr=1e-9)
    update = hooks.client_update(task=task.at(1), received=received, clients=clients)[0]
    torch.testing.assert_close(update.payload["params"]["head"], received["params"]["head"][0])


# FEDIC


def test_the_server_of_fedic_has_images_of_held_out_clients_alone(tiny, tmp_path):
    task, hooks = tiny("fedic", auxiliary=2)
    rows = plugin("fedic").server_rows(task)
    assert set(rows) <= set(task.data.train[0]) and 0 not in task.data.participating
    labels = task.data.labels[torch.from_numpy(rows)]
    mine = torch.bincount(task.data.labels[torch.from_numpy(task.data.train[0])], minlength=4)
    assert torch.bincount(labels, minlength=4).tolist() == mine.clamp(max=2).tolist()
    assert np.array_equal(rows, plugin("fedic").server_rows(task.at(5)))
    everyone = replace(task.data, participating=list(range(6)))
    with pytest.raises(FedLoomError, match=r"fedic: its server needs images, .* set held_out"):
        hooks.init_server(task=replace(task, data=everyone))


def calibrated_by_hand(params, z, each, tuned):
    """Return calibrated logits, image by image, as the released code computes them."""
    result = []
    for i in range(len(tuned)):
        weights = [torch.sigmoid(params["client"] @ own[i] + params["client_bias"]) for own in each]
        mixed = sum(w * own[i] for w, own in zip(weights, each, strict=True)) / sum(weights)
        adjusted = params["scale"] * mixed + params["shift"]
        gate = torch.sigmoid(params["gate"] @ z[i] + params["gate_bias"])
        result.append(gate * adjusted + (1 - gate) * tuned[i])
    return torch.stack(result)


LR = 0.2
TEMPERATURE = 3.0
BALANCE = 0.7


def first_step(params, loss, decay=2e-4):
    """Return parameters {name: [...]} after the first step of Adam on a loss, in float64."""
    params = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
    slopes = torch.autograd.grad(loss(params), list(params.values()))
    result = {}
    for (name, value), slope in zip(params.items(), slopes, strict=True):
        slope = slope + decay * value
        result[name] = (value - LR * slope / (slope.abs() + 1e-8)).detach()
    return result


def answer(task, params, pixels):
    """Return logits [B, C] of one model {name: [...]}, whose weights lie beside its head."""
    weights = {name: value for name, value in params.items() if name != "head"}
    return logits(task, pixels, params["head"], weights)


def taught_by_hand(task, average, models, pixels, labels):
    """Return the calibrated logits [B, C] of the teacher: fine-tuning, then calibration."""
    tuned_model = first_step(
        average, lambda params: F.cross_entropy(answer(task, params, pixels), labels)
    )
    tuned = answer(task, tuned_model, pixels)
    z = sum(features(task, pixels, model["weights"]) for model in models) / len(models)
    each = [logits(task, pixels, model["head"], model["weights"]) for model in models]
    start = {
        "client": torch.ones(4), "client_bias": torch.zeros(1), "scale": torch.ones(4),
        "shift": torch.zeros(4), "gate": torch.zeros(16), "gate_bias": torch.zeros(1),
    }  # fmt: skip
    calibration = first_step(
        tensor_map(torch.Tensor.double, start),
        lambda params: F.cross_entropy(calibrated_by_hand(params, z, each, tuned), labels),
        decay=0,
    )
    return calibrated_by_hand(calibration, z, each, tuned)


def distilled_by_hand(task, average, taught, pixels, labels):
    """Return the average {name: [...]} after a step towards the teacher's logits and the labels."""
    goal = (taught / TEMPERATURE).softmax(-1)

    def loss(params):
        scores = answer(task, params, pixels)
        log_chances = (scores / TEMPERATURE).log_softmax(-1)
        divergence = (goal * (goal.log() - log_chances)).sum(-1).mean()
        return BALANCE * divergence + (1 - BALANCE) * F.cross_entropy(scores, labels)

    return first_step(average, loss)


@pytest.fixture
def server_round(case, monkeypatch):
    """Return a task of FEDIC in float64, its hooks, a start, three models and their average.

    A phase of the server takes one step on all of its images at once.
    """
    options = {"temperature": TEMPERATURE, "balance": BALANCE, "server_lr": LR}
    task, hooks = case("fedic", server_batch=1000, server_steps=1, **options)
    torch.manual_seed(1)
    start = shaken(initial_state(task, hooks).server)["params"]
    models = [shaken(start) for _ in range(3)]
    average = tensor_map(lambda a, b, c: 0.2 * a + 0.3 * b + 0.5 * c, *models)
    single = plugin("fedic").init_calibration
    monkeypatch.setattr(
        plugin("fedic"),
        "init_calibration",
        lambda task: tensor_map(torch.Tensor.double, single(task)),
    )
    return task, hooks, start, models, average


def images_of_server(task):
    """Return the rows [n] of the server's images, their pixels, and their labels [n]."""
    rows = plugin("fedic").server_rows(task)
    batch = task.data.batch([rows])
    return rows, task.backbone.pixels(batch.images[0]), batch.labels[0]


def test_fedics_teacher_is_fine_tuned_and_then_calibrated(server_round):
    task, _, _, models, average = server_round
    rows, pixels, labels = images_of_server(task)
    found = plugin("fedic").teach(task.at(1), average, fl.stack(models), rows)
    flat = {"head": average["head"], **average["weights"]}
    expected = taught_by_hand(task, flat, models, pixels, labels)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert (found - answer(task, flat, pixels)).abs().max() > 1e-3


def test_fedics_models_have_weights_where_all_of_them_are_hardly_sure(case):
    """A sigmoid of -200 is 0 in float32; the ratio of two such weights is still exp(5)."""
    task, _ = case("fedic")
    calibration = sys.modules["fedloom_plugins.fedic.calibration"]
    params = tensor_map(torch.Tensor.float, calibration.init_calibration(task))
    logits = torch.tensor([[[-50.0] * 4], [[-51.25] * 4]])  # sums of -200 and -205
    found = calibration.calibrate(params, torch.zeros(1, 16), logits, torch.zeros(1, 4))
    share = np.exp(5) / (1 + np.exp(5))
    expected = 0.5 * (share * -50 + (1 - share) * -51.25)  # the gate is half open
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_fedics_server_distils_its_teacher_into_the_average(server_round):
    """Clients' models count by their 2, 3 and 5 images, in whatever order they arrive."""
    task, hooks, start, models, average = server_round
    _, pixels, labels = images_of_server(task)
    updates = [
        Update({"params": model}, {}, n, {}, client=k)
        for k, (model, n) in enumerate(zip(models, (2, 3, 5), strict=True))
    ]
    after = hooks.aggregate(task=task.at(1), server={"params": start}, updates=updates[::-1])
    flat = {"head": average["head"], **average["weights"]}
    taught = taught_by_hand(task, flat, models, pixels, labels)
    expected = distilled_by_hand(task, flat, taught, pixels, labels)
    moved = 0.0
    for name, value in expected.items():
        found = after["params"]["head"] if name == "head" else after["params"]["weights"][name]
        torch.testing.assert_close(found, value, atol=1e-6, rtol=1e-5)
        moved = max(moved, float((value - flat[name]).abs().max()))
    assert moved > 1e-3


def test_later_steps_of_the_server_are_adams_and_draw_batches(tiny):
    task, _ = tiny("fedic", server_steps=3, server_lr=0.1, server_batch=2)
    gradients = [1.0, 0.1, 3.0]
    seen = []

    def loss(params, some):
        seen.append(some.tolist())
        return gradients[len(seen) - 1] * params["x"].sum()

    after = plugin("fedic").descend(task.at(1), {"x": torch.zeros(1)}, np.arange(9), "test", loss)
    expected = by_hand("adam", np.array(gradients), 0.0, 0.1, 0.0, (0.9, 0.999), 1e-8)
    torch.testing.assert_close(after["x"], torch.tensor([expected], dtype=torch.float32))
    assert all(len(set(some)) == 2 for some in seen) and len({tuple(s) for s in seen}) == 3


# both on a ResNet


@pytest.mark.parametrize("name", ["creff", "fedic"])
def test_they_train_a_resnet_and_its_running_statistics(name, tmp_path):
    backbone = resnet.load({"name": "resnet8_wide", "weights": "none"})
    options = (
        {"matching_steps": 1, "retraining_epochs": 1} if name == "creff" else {"server_steps": 1}
    )
    task = tiny_task(
        manifest.find_method(name), tmp_path, backbone=backbone_as_vit(backbone), **options
    )
    task = replace(task, backbone=backbone)
    hooks = loader.load_hooks(manifest.find_method(name))
    start = initial_state(task, hooks)
    state, row = train_round(task.at(1), hooks, start)
    before, after = (s.server["params"]["statistics"] for s in (start, state))
    assert all(not torch.equal(before[key], after[key]) for key in before)
    assert np.isfinite(row.train_loss)


def backbone_as_vit(backbone):
    """Return a stand-in for the ViT that tiny_task runs for a cache, which neither method needs."""
    return SimpleNamespace(class_tokens=lambda images: torch.zeros(len(images), 13, 16))


# the server's optimisers


def by_hand(kind, gradients, x, lr, momentum, betas, eps):
    """Return x after Algorithm 2 of Reddi et al., with the bias correction of torch for Adam."""
    m = 0.0
    v = 0.0 if kind == "adam" else eps**2
    for t, g in enumerate(gradients, 1):
        if kind == "sgd":
            m = momentum * m + g
            x = x - lr * m
            continue
        m = betas[0] * m + (1 - betas[0]) * g
        if kind == "adagrad":
            v = v + g**2
        elif kind == "yogi":
            v = v - (1 - betas[1]) * g**2 * np.sign(v - g**2)
        else:
            v = betas[1] * v + (1 - betas[1]) * g**2
        one, two = (1 - betas[0] ** t, 1 - betas[1] ** t) if kind == "adam" else (1, 1)
        x = x - lr * (m / one) / (np.sqrt(v / two) + eps)
    return x


@pytest.mark.parametrize(
    ("kind", "momentum"),
    [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0), ("yogi", 0.0), ("adagrad", 0.0)],
)
def test_the_server_steps_as_algorithm_2(kind, momentum):
    """The server takes four steps on a tree of parameters that has two levels."""
    generator = np.random.default_rng(0)
    start = generator.normal(size=3)
    gradients = generator.normal(size=(4, 3)) * [1.0, 0.1, 3.0]
    params = {"a": {"b": torch.tensor(start)}, "c": torch.tensor(start[:1])}
    settings = {"lr": 0.3, "momentum": momentum, "betas": (0.8, 0.95), "eps": 0.02}
    options = SimpleNamespace(
        server_optimizer=kind, **{f"server_{name}": value for name, value in settings.items()}
    )
    stepping = module("fedopt_pt", "server_step")
    moments = stepping.init_moments(options, params)
    before = [value.clone() for _, value in leaves(params)]
    now = params
    for number, g in enumerate(gradients, 1):
        slope = {"a": {"b": torch.tensor(g)}, "c": torch.tensor(g[:1])}
        old = [value.clone() for _, value in leaves(moments)]
        given = moments
        now, moments = stepping.server_step(options, now, slope, given, number)
        assert all(torch.equal(a, b) for a, (_, b) in zip(old, leaves(given), strict=True))
    expected = by_hand(kind, gradients, start, **settings)
    np.testing.assert_allclose(now["a"]["b"].numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(now["c"].numpy(), expected[:1], rtol=1e-12)
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, leaves(params), strict=True))
