"""FedPHA: its projection in all readings, its losses, and contexts of several lengths."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clip_by_hand
from fedloom.common.errors import FedLoomError
from fedloom.federated.round import initial_state
from fedloom.toolbox import SERVER_MODEL
from first_round import first_cohort, module

# ---- projection -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rho", "paper", "algorithm_1"), [(0.8, 4, 16), (0.0, 20, 0), (1.0, 0, 20), (0.1, 18, 2)]
)
def test_equation_9_keeps_the_share_that_algorithm_1_drops(rho, paper, algorithm_1):
    kept = module("fedpha", "projection").directions_kept
    assert kept("paper", rho, 20) == paper
    assert kept("algorithm_1", rho, 20) == algorithm_1


def test_the_projection_is_on_the_weakest_directions():
    project = module("fedpha", "projection").project_on_weakest
    context = torch.randn(5, 20, generator=torch.Generator().manual_seed(0)).double()
    for kept in (0, 4, 18, 20):
        q = project(context, kept)
        assert torch.linalg.matrix_rank(q) == kept == int(q.diagonal().sum().round())
        torch.testing.assert_close(q @ q, q)
        torch.testing.assert_close(q, q.T)
    # 18 of 20 directions: all 15 that the context does not span, and its 3 weakest
    _, _, rows = np.linalg.svd(context.numpy())
    np.testing.assert_allclose(project(context, 18).numpy(), rows[2:].T @ rows[2:], atol=1e-10)
    # a local prompt inside the dropped directions is mapped to zero
    assert (torch.from_numpy(rows[:2]) @ project(context, 18)).abs().max() < 1e-10


def test_the_released_projection_lies_inside_the_row_space():
    context = torch.randn(16, 40, generator=torch.Generator().manual_seed(0)).double()
    _, _, rows = np.linalg.svd(context.numpy(), full_matrices=False)
    for rho, dropped in ((0.8, 3), (0.4, 9)):  # 3 is int(3.2), 9 is int(9.6)
        found = module("fedpha", "released").projection(context, rho)
        expected = rows[dropped:].T @ rows[dropped:]
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-10)


# ---- losses ---------------------------------------------------------------------------------


def _projection_by_hand(context, variant, rho):
    """Return the projection Q [d, d] of a context [T, d], in float64."""
    tokens, width = context.shape
    context = context.double().numpy()
    if variant == "released":
        rows = np.linalg.svd(context, full_matrices=False)[2][int((1 - rho) * tokens) :]
        return rows.T @ rows
    kept = int((1 - rho) * width) if variant == "paper" else width - int((1 - rho) * width)
    rows = np.linalg.svd(context)[2][width - kept :]
    assert kept >= width - tokens or rho == 0.5, "else the directions are not unique"
    return rows.T @ rows


ALPHA = 1.65  # between the distances of a client's classes


def _losses_in_training(monkeypatch, task, received, clients, batch):
    """Return the loss and the reported loss [K, B] that FedPHA's clients begin to train with."""
    method = module("fedpha")
    seen = {}

    def capture(task, loss, known, clients, **more):
        seen["loss"], extras = loss(task, more["params"], known, clients, batch)
        seen["reported"] = extras["reported_loss"]
        raise StopIteration

    monkeypatch.setattr(method.fl, "train_locally", capture)
    with pytest.raises(StopIteration):
        method.client_update(task=task, received=received, clients=clients)
    return seen["loss"], seen["reported"]


def _entropy_by_hand(model, text, image, label):
    """Return the cross-entropy of an image [d_joint] among texts [C, d_joint]."""
    scores = float(model.logit_scale.exp()) * text @ image
    return np.log(np.exp(scores).sum()) - scores[label]


@pytest.mark.parametrize(
    ("variant", "rho", "global_length", "alpha"),
    [
        ("paper", 0.25, 5, 2.5),
        ("paper", 0.25, 5, ALPHA),
        ("algorithm_1", 0.75, 5, 2.5),
        ("released", 0.5, 5, 2.5),
        ("released", 0.5, 11, 2.5),  # the global context is the longest
    ],
)
def test_the_losses_of_fedpha_by_hand(tiny, monkeypatch, variant, rho, global_length, alpha):
    """Clients have contexts of 4 and 8 tokens; the released code reads the first behind its EOT.

    Some classes are pushed and others are far enough apart if alpha is ALPHA.
    """
    options = {"lengths": [4, 8], "global_length": global_length, "rho": rho, "alpha": alpha}
    task, hooks = tiny("fedpha", variant=variant, **options)
    received, clients, batch = first_cohort(task, hooks, [0, 4])
    assert clients.state["length"].tolist() == [4, 8]
    model = task.backbone.model
    found, reported = _losses_in_training(monkeypatch, task, received, clients, batch)

    def features(context):
        longest = max(8, global_length) if variant == "released" else len(context)
        text = clip_by_hand.features_behind(model, context, task.data.classes, longest)
        return text.detach().double().numpy()

    for k, length in enumerate((4, 8)):
        shared = received["params"]["context"][k]
        local = clients.state["local"][k, :length]
        q = torch.from_numpy(_projection_by_hand(shared, variant, rho)).float()
        local_text = features(local)
        global_text = features(shared)
        pull = ((local_text - features(local @ q)) ** 2).mean()
        gaps = alpha - np.linalg.norm(local_text - global_text, axis=1)
        push = np.maximum(gaps, 0).mean()
        assert pull > 0 and push > 0
        if alpha == ALPHA and k == 1:
            assert gaps.min() < 0 < gaps.max()
        for b in range(4):
            example = batch.features[k, b].double().numpy(), int(batch.labels[k, b])
            entropy = _entropy_by_hand(model, local_text, *example)
            total = entropy + _entropy_by_hand(model, global_text, *example) + pull + push
            assert found[k, b].item() == pytest.approx(total, rel=1e-4)
            of_prediction = pytest.approx(entropy, rel=1e-4)
            assert reported[k, b].item() == of_prediction, "the local context predicts"


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("options", [{"lengths": [4, 6, 9]}, {"random_lengths": [4, 12]}])
def test_predictions_are_those_of_the_local_context_by_hand(tiny, variant, options):
    """The released code reads every context where the longest one of any client would end."""
    ids = [0, 2, 4]
    task, hooks = tiny("fedpha", variant=variant, global_length=3, **options)
    received, clients, batch = first_cohort(task, hooks, ids)
    found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    lengths = [int(hooks.init_client(task=task, client=k)["length"]) for k in range(6)]
    assert len(set(lengths)) > 1 and max(lengths) < 12, "shorter than what might be drawn"
    for k, client in enumerate(ids):
        context = clients.state["local"][k, : lengths[client]]
        longest = max(lengths) if variant == "released" else lengths[client]
        model = task.backbone.model
        names = task.data.classes
        text = clip_by_hand.features_behind(model, context, names, longest)
        expected = clip_by_hand.logits(model, batch.features[k], text)
        torch.testing.assert_close(found[k], expected.detach(), atol=1e-4, rtol=1e-4)
    assert hooks.predict(task=task.at(1), received=received, clients=clients, batch=batch).equal(
        found
    ), "lengths do not depend on the round"


def _loss_by_hand(model, shared, local, names, images, labels, variant):
    """Return the loss [B] of a client in float64, differentiable in both contexts [L, d].

    rho is 0.25 and alpha 2.5; the contexts have 5 and 4 tokens.
    """
    q = torch.from_numpy(_projection_by_hand(shared.detach(), variant, 0.25))
    if variant == "released":
        v = torch.linalg.svd(shared, full_matrices=False).Vh.T[:, int(0.75 * 5) :]
        q = v @ v.T  # the gradient flows through it
    longest = 5 if variant == "released" else 4
    local_text = clip_by_hand.features_behind(model, local, names, longest)
    projected_text = clip_by_hand.features_behind(model, local @ q, names, longest)
    global_text = clip_by_hand.features(model, shared, names)
    entropy = sum(
        F.cross_entropy(clip_by_hand.logits(model, images, text), labels, reduction="none")
        for text in (local_text, global_text)
    )
    pull = (local_text - projected_text).square().mean()
    push = F.relu(2.5 - (local_text - global_text).norm(dim=-1)).mean()
    return entropy + pull + push


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_gradients_of_fedpha_flow_through_both_sides_of_the_pull(tiny, variant):
    """Eq. 11 trains the local context through its projection, too."""
    options = {"length": 4, "global_length": 5, "rho": 0.25, "alpha": 2.5}
    task, hooks = tiny("fedpha", variant=variant, **options)
    received, clients, batch = first_cohort(task, hooks, [0])
    method = module("fedpha")
    params = {"context": received["params"]["context"], "local": clients.state["local"]}
    known = received | {"projection": method.projection(task, params["context"])}
    weights = torch.linspace(-1, 2, 4).double()

    found = [value.clone().requires_grad_() for value in params.values()]
    losses = method.loss(task, dict(zip(params, found, strict=True)), known, clients, batch)
    (losses[0].double() @ weights).backward()

    model = deepcopy(task.backbone.model).double()
    shared, local = (value[0].double().requires_grad_() for value in params.values())
    example = task.data.classes, batch.features[0].double(), batch.labels[0]
    (_loss_by_hand(model, shared, local, *example, variant) @ weights).backward()
    torch.testing.assert_close(found[0].grad[0].double(), shared.grad, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(found[1].grad[0].double(), local.grad, atol=1e-4, rtol=1e-3)


# ---- clients --------------------------------------------------------------------------------


def test_clients_with_contexts_of_4_16_and_32_tokens_train_as_each_alone(tiny):
    ids = [0, 2, 4]
    task, hooks = tiny("fedpha", lengths=[4, 16, 32])
    received, clients, _ = first_cohort(task, hooks, ids)
    assert clients.state["length"].tolist() == [4, 16, 32]
    together = hooks.client_update(task=task.at(1), received=received, clients=clients)
    for k, length in enumerate((4, 16, 32)):
        part = first_cohort(task, hooks, ids[k : k + 1])[:2]
        (alone,) = hooks.client_update(task=task.at(1), received=part[0], clients=part[1])
        local = together[k].client_state["local"]
        assert (local[length:] == 0).all(), "padding stays padding"
        assert not torch.equal(local, clients.state["local"][k]), "it trained"
        torch.testing.assert_close(local, alone.client_state["local"], atol=1e-5, rtol=1e-4)
        sent = (u.payload["params"]["context"] for u in (together[k], alone))
        torch.testing.assert_close(*sent, atol=1e-5, rtol=1e-4)


def test_lengths_are_drawn_per_client_and_the_same_every_time(tiny):
    task, hooks = tiny("fedpha", random_lengths=[4, 9])
    found = [
        [int(hooks.init_client(task=task, client=k)["length"]) for k in range(6)] for _ in range(2)
    ]
    assert found[0] == found[1] and len(set(found[0])) > 1
    length_of = module("fedpha", "lengths").local_length
    assert {length_of(task, client) for client in range(200)} == set(range(4, 10))
    task, hooks = tiny("fedpha", random_lengths=[6, 6])
    initial_state(task, hooks)
    assert {int(hooks.init_client(task=task, client=k)["length"]) for k in range(6)} == {6}


def test_consecutive_clients_share_an_entry_of_the_lengths(tiny):
    for lengths, expected in (
        ([9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4]),
        ([4, 9], [4, 4, 4, 9, 9, 9]),
    ):
        task, hooks = tiny("fedpha", lengths=lengths)
        states = [hooks.init_client(task=task, client=k) for k in range(6)]
        assert [int(state["length"]) for state in states] == expected
        stranger = hooks.init_client(task=task, client=SERVER_MODEL)
        assert int(stranger["length"]) == lengths[0]


def test_each_client_starts_from_its_own_context_or_all_from_one(tiny):
    for options in ({"length": 6}, {"lengths": [6, 4]}):
        task, hooks = tiny("fedpha", **options)
        own = [hooks.init_client(task=task, client=k)["local"][:4] for k in range(6)]
        assert all(not torch.equal(own[0], other) for other in own[1:])
        task, hooks = tiny("fedpha", same_start=True, words="a photo", **options)
        state = [hooks.init_client(task=task, client=k) for k in range(6)]
        words = task.backbone.embed_text("a photo")
        for one in state:
            assert torch.equal(one["local"][:4], state[0]["local"][:4])
            assert torch.equal(one["local"][:2], words)
            assert (one["local"][one["length"] :] == 0).all()
            assert (one["local"][: one["length"]] != 0).all()
        other = hooks.init_client(task=replace(task, seed=1), client=0)
        assert not torch.equal(other["local"], state[0]["local"])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"lengths": [4, 8, 4, 8]}, "must have a number of entries that divides 6, .* got 4"),
        (
            {"random_lengths": [9, 4]},
            r"random_lengths must be the least and .* got \[9, 4\]",
        ),
        ({"lengths": [4], "random_lengths": [4, 9]}, "only one of the options lengths and"),
        ({"length": 80}, "a context of 80 tokens, but the text tower holds"),
        ({"random_lengths": [4, 80]}, "a context of 80 tokens, but the text tower holds"),
        ({"global_length": 2, "words": "a photo of a"}, "is 4 tokens, but a context has only 2"),
        ({"lengths": [16, 3], "words": "a photo of a"}, "is 4 tokens, but a context has only 3"),
        ({"random_lengths": [2, 9], "words": "a photo of a"}, "but a context has only 2"),
    ],
)
def test_lengths_that_cannot_be_are_refused(tiny, options, line):
    task, hooks = tiny("fedpha", **options)
    with pytest.raises(FedLoomError, match=line):
        initial_state(task, hooks)
