"""TRIP: clusters of patches with a capacity, one expert for each, and a mean over rounds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import beta

import clip_by_hand
from changed_task import with_training
from fedloom.federated.round import initial_state, train_round
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import load_plan
from fedloom.toolbox import tensor_map
from first_round import first_cohort, module


def clustered(x, centroids, room):
    """Return sizes and centroids of one image's clusters, by the released loop over patches."""
    centroids = centroids.copy()
    extra = np.zeros(len(room))
    for _ in range(100):
        distance = np.linalg.norm(x[:, None] - centroids, axis=-1)  # [T, E]
        price = distance + extra
        left = room.copy()
        member = np.full(len(x), -1)
        for patch in np.argsort(price.min(1), kind="stable"):
            wanted = price[patch].argmin()
            if left[wanted]:
                member[patch] = wanted
                left[wanted] = left[wanted] - 1
        sizes = np.array([(member == k).sum() for k in range(len(room))])
        extra += 1e-4 * (sizes - room)
        moved = centroids.copy()
        for k, size in enumerate(sizes):
            if size:
                moved[k] = x[member == k].mean(0)
            else:
                moved[k], extra[k] = x[distance.min(1).argmax()], 0
        if np.linalg.norm(moved - centroids, axis=1).mean() < 1e-4:
            break
        centroids = moved
    return sizes, centroids


def shares_of(x, keys, first, factor):
    """Return the experts' shares of one image, after trying all matchings for the best."""
    count = len(first)
    room = np.full(count, int(len(x) // count * factor))
    room[: len(x) % count] += 1
    sizes, centroids = clustered(x, x[first], room)
    cosines = centroids @ keys.T
    cosines /= np.linalg.norm(centroids, axis=1)[:, None] * np.linalg.norm(keys, axis=1)
    best = max(
        itertools.permutations(range(len(keys)), count),
        key=lambda experts: sum(cosines[k, e] for k, e in enumerate(experts)),
    )
    found = np.zeros(len(keys))
    found[list(best)] = sizes
    return found / found.sum()


@pytest.mark.parametrize(("patches", "factor"), [(49, 1.0), (50, 2.0), (16, 1.5), (4, 1.0)])
def test_an_experts_share_is_that_of_the_patches_in_its_cluster(patches, factor):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, patches, 6, generator=generator, dtype=torch.float64)
    x[6:] += 3 * torch.randn(6, patches, 1, generator=generator, dtype=torch.float64)
    keys = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    first = torch.randperm(patches, generator=generator)[:5]
    found = module("trip", "routing").expert_shares(x, keys, first, factor)
    expected = [shares_of(image.numpy(), keys.numpy(), first.numpy(), factor) for image in x]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    torch.testing.assert_close(found.sum(1), torch.ones(12, dtype=torch.float64))


def test_an_empty_cluster_moves_to_the_farthest_patch():
    x = torch.tensor([[[0.0, 0], [0, 0], [0, 0], [9, 9]]], dtype=torch.float64)
    room = torch.tensor([3, 3])
    centroids, sizes = module("trip", "routing").cluster(x, torch.tensor([0, 1]), room)
    assert sizes.tolist() == [[3, 1]]
    assert centroids.tolist() == [[[0, 0], [9, 9]]]


def jolted(tree):
    generator = torch.Generator().manual_seed(3)
    return tensor_map(lambda v: v + torch.randn(v.shape, generator=generator), tree)


@pytest.mark.parametrize("role", ["trains", "predicts"])
def test_an_image_has_the_mean_of_its_experts_contexts(tiny, role):
    task, hooks = tiny("trip", experts=3, length=4, weight=2.0, templates=["one {}", "the {}"])
    received, clients, batch = first_cohort(task, hooks)
    params = jolted(received["params"])
    names = task.data.classes
    model = task.backbone.model
    plugin = module("trip")
    count = batch.patches.shape[2]
    first = torch.randperm(count, generator=task.at(0).generator("first centroids"))
    first = first[:3].numpy()
    keys = plugin.expert_keys(task)
    torch.testing.assert_close(keys @ keys.T, torch.eye(3))
    assert torch.equal(plugin.expert_keys(task.at(2)), keys), "drawn once"
    written = task.backbone.zero_shot(names, ["one {}", "the {}"])
    if role == "trains":
        shares = plugin.training_shares(task, clients).expand(3, -1, -1)
        known = {"params": params, "written": written.expand(3, -1, -1), "shares": shares}
        found, extras = plugin.loss(task, params, known, clients, batch)
    else:
        found = hooks.predict(task=task, received={"params": params}, clients=clients, batch=batch)
    for k in range(3):
        for b, patches in enumerate(batch.patches[k].double().numpy()):
            factor = 1.0 if role == "trains" else 2.0
            shares = shares_of(patches, keys.double().numpy(), first, factor)
            context = sum(s * v for s, v in zip(shares, params["experts"][k].double(), strict=True))
            texts = clip_by_hand.features(model, context.float(), names)
            image = batch.features[k, b][None]
            expected = clip_by_hand.logits(model, image, texts)[0]
            if role == "trains":
                wanted = clip_by_hand.logits(model, image, written)[0].softmax(-1)
                guided = -(wanted * expected.log_softmax(-1)).sum()
                entropy = F.cross_entropy(expected, batch.labels[k, b])
                reported = extras["reported_loss"][k, b]
                torch.testing.assert_close(reported, entropy, atol=1e-3, rtol=1e-3)
                expected = entropy + 2.0 * guided
            torch.testing.assert_close(found[k, b], expected, atol=1e-3, rtol=1e-3)


def test_an_image_has_the_same_experts_in_all_rounds(tiny):
    task, hooks = tiny("trip", experts=3, length=4)
    _, _, batch = first_cohort(task, hooks)
    shares_of_round = [
        module("trip").expert_shares(task.at(number), batch, 1.0) for number in (1, 2, 3, 4)
    ]
    assert all(torch.equal(shares, shares_of_round[0]) for shares in shares_of_round)


def test_experts_start_alike_as_released_or_apart(tiny):
    task, hooks = tiny("trip", experts=3, length=4)
    (first, *others) = initial_state(task, hooks).server["params"]["experts"]
    assert all(torch.equal(expert, first) for expert in others)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert len(state.server["params"]["experts"].unique(dim=0)) == 3, "they part in training"

    task, hooks = tiny("trip", experts=3, length=4, same_start=False)
    apart = initial_state(task, hooks).server["params"]["experts"]
    assert len(apart.unique(dim=0)) == 3
    assert torch.equal(apart[0], first)


def test_tests_use_the_mean_over_rounds_of_the_trained_contexts(tiny):
    task, hooks = tiny("trip", experts=3, length=4, beta=0.3)
    task = with_training(task, schedule_rounds=3)
    state = initial_state(task, hooks)
    kept = []
    first = state.server["params"]["experts"]
    for number in (1, 2, 3):
        state, _ = train_round(task.at(number), hooks, state)
        kept.append(state.server["params"]["experts"])
    weights = beta.pdf((np.arange(3) + 0.5) / 4, 0.3, 0.3)
    mean = weights[0] * first + sum(w * v for w, v in zip(weights, kept, strict=True))
    mean /= weights[0] + weights.sum()
    now = task.at(3)
    tested, trained = (
        hooks.download(task=t, server=state.server, client=2)["params"]["experts"]
        for t in (now, replace(now, selected=(1, 2)))
    )
    torch.testing.assert_close(tested.double(), mean.double(), atol=1e-6, rtol=1e-6)
    assert torch.equal(trained, kept[-1])


def test_its_runs_know_the_number_of_rounds():
    plan = load_plan([ROOT / "workflow/studies/micro/micro_clip_more.yaml"])
    assert plan.settings.methods["trip"].training["schedule"] == "exponential"
    of_trip = next(run for run in plan.runs if run.method == "trip")
    assert plan.run_spec(of_trip).schedule_rounds == plan.settings.study.rounds
