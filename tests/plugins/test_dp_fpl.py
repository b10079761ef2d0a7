"""DP-FPL: gradients of low rank, clipped and noisy, against torch's SGD and QR in float64."""

import math
from copy import deepcopy
from functools import cache

import pytest
import torch
import torch.nn.functional as F

import clip_by_hand
from changed_task import with_training
from fedloom.common.errors import FedLoomError
from fedloom.data.batch import shuffled_batches
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import SERVER_MODEL, stack
from first_round import first_cohort, module

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
# tokens, rank, width
L = 4
R = 2
D = 16


@cache
def exact(model):
    return deepcopy(model).double()


def logits(task, context, images):
    model = exact(task.backbone.model)
    texts = clip_by_hand.features(model, context, task.data.classes)
    return clip_by_hand.logits(model, images.double(), texts)


def basis(x):
    """Return the Q of a QR decomposition whose R has a positive diagonal."""
    q, r = torch.linalg.qr(x)
    return q * r.diagonal().sign()


def private(gradient, limit, noise):
    return gradient * min(1, limit / gradient.norm()) + noise


def of_personal(gradient, personal, numbers, limit, std):
    """Return the gradient of p_L [L, d] from the context's gradient and a step's draws."""
    first, of_u, of_v, _ = numbers.split([D * R, L * R, R * D, L * D])
    u = basis(personal @ first.view(D, R))
    v = basis(personal.T @ u).T
    du = gradient @ v.T
    dv = u.T @ gradient
    if std:
        du = private(du, limit, std * of_u.view(L, R))
        dv = private(dv, limit, std * of_v.view(R, D))
    return (du @ v + u @ dv + u @ u.T @ du @ v) / 10


@pytest.mark.parametrize(("epsilon", "limit"), [(0.0, 10.0), (300.0, 10.0), (3000.0, 0.02)])
def test_rounds_are_those_of_sgd_with_noisy_gradients_of_low_rank(tiny, epsilon, limit):
    """The cases are no noise, noise small enough to see the rest, and clipped gradients."""
    task, hooks = tiny("dp_fpl", length=L, rank=R, epsilon=epsilon, limit=limit)
    task = with_training(task, batch_size=8, epochs=1)
    std = limit / 8 * math.sqrt(4 * math.log(1e5)) / epsilon if epsilon else 0.0  # 4 rounds
    state = initial_state(task, hooks)
    decay = task.training.weight_decay
    shared = state.server["params"]["shared"].double()
    own = {k: hooks.init_client(task=task, client=k)["personal"].double() for k in range(6)}
    longest = 0.0
    before = []
    for number in (1, 2):
        current = task.at(number)
        state, row = train_round(current, hooks, state)
        chosen = [entry.client_id for entry in row.updates]
        states = [{} for _ in chosen]
        numbers = (
            module("dp_fpl").draw_random_numbers(current, cohort(current, chosen, states)).double()
        )
        sent = []
        for k, client in enumerate(chosen):
            pair = [v.clone().requires_grad_() for v in (shared, own[client])]
            sgd = torch.optim.SGD(
                pair, task.training.lr, task.training.momentum, weight_decay=decay
            )
            rows = task.data.train[client]
            batches = shuffled_batches(rows, 8, 1, task.seed, number, client, 0)
            for step, some in enumerate(batches):
                batch = task.data.batch([some])
                found = logits(task, pair[0] + pair[1], batch.features[0])
                loss = F.cross_entropy(found, batch.labels[0])
                (gradient,) = torch.autograd.grad(loss, pair[:1])
                longest = max(longest, gradient.norm().item())
                drawn = numbers[k, step]
                before.append(drawn.tolist())
                pair[1].grad = of_personal(gradient, pair[1].detach(), drawn, limit, std)
                noise = std / len(chosen) ** 0.5 * drawn[-L * D :].view(L, D)
                pair[0].grad = private(gradient, limit, noise) if std else gradient
                sgd.step()
            own[client] = pair[1].detach()
            sent.append(pair[0].detach())
            kept = state.clients[client]["personal"].double()
            torch.testing.assert_close(kept, own[client], **CLOSE)
        shared = sum(sent) / len(sent)
        torch.testing.assert_close(state.server["params"]["shared"].double(), shared, **CLOSE)
    assert longest > limit or limit == 10.0, "the clip is seen"
    assert len({tuple(numbers) for numbers in before}) == len(before), "each step draws anew"
    everything = torch.tensor(before)
    assert everything.std().item() == pytest.approx(1, abs=0.05)
    assert abs(everything.mean().item()) < 0.05


def test_released_steps_have_one_momentum_and_the_last_clients_gradient(tiny):
    """The released code loads every client's parameters in turn into one optimiser."""
    task, hooks = tiny("dp_fpl", length=L, rank=R, variant="released")
    task = with_training(task, batch_size=8, lr=0.5)
    state = initial_state(task, hooks)
    first = [state.server["clients"][name][0].double() for name in ("shared", "personal")]
    own = {k: [value.clone() for value in first] for k in range(6)}
    model = [torch.nn.Parameter(value.clone()) for value in first]
    sgd = torch.optim.SGD(
        model, 0.5, task.training.momentum, weight_decay=task.training.weight_decay
    )
    for number in (1, 2, 3):
        current = task.at(number)
        state, row = train_round(current, hooks, state)
        chosen = [entry.client_id for entry in row.updates]
        numbers = (
            module("dp_fpl")
            .draw_random_numbers(current, cohort(current, chosen, [{}] * 3))
            .double()
        )
        gradients = []
        for k, client in enumerate(chosen):
            shared, personal = own[client]
            context = (shared + personal).requires_grad_()
            rows = task.data.train[client]
            some = next(iter(shuffled_batches(rows, 8, 1, task.seed, number, client, 0)))
            batch = task.data.batch([some])
            found = logits(task, context, batch.features[0])
            (gradient,) = torch.autograd.grad(F.cross_entropy(found, batch.labels[0]), context)
            gradients.append(gradient)
            left_behind = of_personal(gradient, personal, numbers[k, 0], 10.0, 0.0)
        for client in chosen:
            for parameter, value in zip(model, own[client], strict=True):
                parameter.data = value
            model[0].grad = sum(gradients) / len(gradients)
            model[1].grad = left_behind
            sgd.step()
            own[client] = [parameter.detach().clone() for parameter in model]
        for client, values in own.items():
            for name, value in zip(("shared", "personal"), values, strict=True):
                found = state.server["clients"][name][client].double()
                torch.testing.assert_close(found, value, **CLOSE)
    moved = [(own[client][1] - first[1]).norm() for client in chosen]
    assert min(moved) > 1e-3
    mean = sum(own[client][0] for client in task.data.participating) / 5
    torch.testing.assert_close(state.server["params"]["shared"].double(), mean, **CLOSE)
    stranger = hooks.download(task=task, server=state.server, client=0)["params"]
    assert torch.equal(stranger["shared"], state.server["params"]["shared"])
    assert torch.equal(stranger["personal"].double(), first[1])


def test_released_steps_are_of_sgd(tiny):
    task, hooks = tiny("dp_fpl", variant="released")
    task = with_training(task, optimizer="adam")
    with pytest.raises(FedLoomError, match=r"training\.optimizer must be sgd .* got adam"):
        initial_state(task, hooks)


def test_clients_predict_with_both_contexts_and_the_server_with_its_own(tiny):
    task, hooks = tiny("dp_fpl", length=L, rank=R)
    received, clients, batch = first_cohort(task, hooks)
    own = [{"personal": torch.randn(L, D)} for _ in range(3)]
    server = cohort(task, [SERVER_MODEL], [hooks.init_client(task=task, client=SERVER_MODEL)])
    found, of_server = (
        hooks.predict(task=task, received=received, clients=who, batch=batch)
        for who in (cohort(task, clients.ids, own), server)
    )
    for k in range(3):
        shared = received["params"]["shared"][k].double()
        both = logits(task, shared + own[k]["personal"].double(), batch.features[k])
        torch.testing.assert_close(found[k].double(), both, **CLOSE)
        alone = logits(task, shared, batch.features[k])
        torch.testing.assert_close(of_server[k].double(), alone, **CLOSE)
    first = stack([hooks.init_client(task=task, client=k) for k in (0, 1)])["personal"]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], shared.float())


def test_a_rank_above_the_length_is_refused(tiny):
    task, hooks = tiny("dp_fpl", length=3, rank=4)
    with pytest.raises(FedLoomError, match=r"rank must be at most options\.length, 3, got 4"):
        initial_state(task, hooks)
