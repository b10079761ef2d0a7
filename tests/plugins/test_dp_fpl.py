"""DP-FPL: gradients of low rank, clipped and noisy, against torch's SGD and QR in float64."""

import math
from copy import deepcopy
from dataclasses import replace
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


def drawn_numbers(task, chosen):
    """Return the random numbers [K, S, D] of the chosen clients' steps, in float64."""
    clients = cohort(task, chosen, [{}] * len(chosen))
    return module("dp_fpl").draw_random_numbers(task, clients).double()


def batches_of(task, client):
    """Return a client's batches of 8 images in this round, as rows of the image store."""
    rows = task.data.train[client]
    return shuffled_batches(rows, 8, 1, task.seed, task.round, client, 0)


def context_gradient(task, context, rows):
    """Return the gradient [L, d] of the cross-entropy in the context, on a batch of rows."""
    batch = task.data.batch([rows])
    context = context.detach().requires_grad_()
    loss = F.cross_entropy(logits(task, context, batch.features[0]), batch.labels[0])
    return torch.autograd.grad(loss, context)[0]


def epoch_by_hand(task, start, client, numbers, limit, std):
    """Return both contexts of a client after its epoch of SGD, and the gradients' norms.

    Args:
        start: the contexts p_G and p_L [L, d] before the epoch.
        numbers: the random numbers of each step [S, D].
        std: standard deviation of the noise; 0 for no privacy.
    """
    pair = [value.clone().requires_grad_() for value in start]
    training = task.training
    sgd = torch.optim.SGD(pair, training.lr, training.momentum, weight_decay=training.weight_decay)
    norms = []
    for step, rows in enumerate(batches_of(task, client)):
        gradient = context_gradient(task, pair[0] + pair[1], rows)
        norms.append(gradient.norm().item())
        pair[1].grad = of_personal(gradient, pair[1].detach(), numbers[step], limit, std)
        noise = std / len(task.selected) ** 0.5 * numbers[step, -L * D :].view(L, D)
        pair[0].grad = private(gradient, limit, noise) if std else gradient
        sgd.step()
    return [value.detach() for value in pair], norms


@pytest.mark.parametrize(("epsilon", "limit"), [(0.0, 10.0), (300.0, 10.0), (3000.0, 0.02)])
def test_rounds_are_those_of_sgd_with_noisy_gradients_of_low_rank(tiny, epsilon, limit):
    """The cases are no noise, noise small enough to see the rest, and clipped gradients."""
    task, hooks = tiny("dp_fpl", length=L, rank=R, epsilon=epsilon, limit=limit)
    task = with_training(task, batch_size=8, epochs=1)
    std = limit / 8 * math.sqrt(4 * math.log(1e5)) / epsilon if epsilon else 0.0  # 4 rounds
    state = initial_state(task, hooks)
    shared = state.server["params"]["shared"].double()
    own = {k: hooks.init_client(task=task, client=k)["personal"].double() for k in range(6)}
    norms = []
    for number in (1, 2):
        state, row = train_round(task.at(number), hooks, state)
        chosen = [entry.client_id for entry in row.updates]
        current = replace(task.at(number), selected=tuple(chosen))
        numbers = drawn_numbers(current, chosen)
        sent = []
        for k, client in enumerate(chosen):
            (trained, own[client]), found = epoch_by_hand(
                current, (shared, own[client]), client, numbers[k], limit, std
            )
            sent.append(trained)
            norms += found
            kept = state.clients[client]["personal"].double()
            torch.testing.assert_close(kept, own[client], **CLOSE)
        shared = sum(sent) / len(sent)
        torch.testing.assert_close(state.server["params"]["shared"].double(), shared, **CLOSE)
    assert max(norms) > limit or limit == 10.0, "the clip is seen"


def test_each_step_of_each_client_draws_numbers_from_the_normal_distribution(tiny):
    task, _ = tiny("dp_fpl", length=L, rank=R)
    task = with_training(task, batch_size=8, epochs=1)
    drawn = []
    for number in (1, 2):
        current = task.at(number)
        for client, rows in zip((1, 2, 3), drawn_numbers(current, [1, 2, 3]), strict=True):
            steps = len(list(batches_of(current, client)))
            drawn += rows[:steps].tolist()
            assert not rows[steps:].any()
    assert len({tuple(numbers) for numbers in drawn}) == len(drawn), "each step draws anew"
    everything = torch.tensor(drawn)
    assert everything.std().item() == pytest.approx(1, abs=0.05)
    assert abs(everything.mean().item()) < 0.05


class ReleasedServer:
    """The released code's one SGD, into which every client's parameters are loaded in turn."""

    def __init__(self, task, first):
        """Take the task, and the contexts p_G and p_L [L, d] that all clients start from."""
        self.own = {k: [value.clone() for value in first] for k in range(6)}
        self.model = [torch.nn.Parameter(value.clone()) for value in first]
        training = task.training
        self.sgd = torch.optim.SGD(
            self.model, 0.5, training.momentum, weight_decay=training.weight_decay
        )

    def step(self, task, chosen):
        """Make the step of a round: all gradients first, then a step for each client."""
        numbers = drawn_numbers(task, chosen)
        gradients = []
        for k, client in enumerate(chosen):
            shared, personal = self.own[client]
            rows = next(iter(batches_of(task, client)))
            gradients.append(context_gradient(task, shared + personal, rows))
            left_behind = of_personal(gradients[-1], personal, numbers[k, 0], 10.0, 0.0)
        for client in chosen:
            for parameter, value in zip(self.model, self.own[client], strict=True):
                parameter.data = value
            self.model[0].grad = sum(gradients) / len(gradients)
            self.model[1].grad = left_behind
            self.sgd.step()
            self.own[client] = [parameter.detach().clone() for parameter in self.model]


def test_released_steps_have_one_momentum_and_the_last_clients_gradient(tiny):
    task, hooks = tiny("dp_fpl", length=L, rank=R, variant="released")
    task = with_training(task, batch_size=8, lr=0.5)
    state = initial_state(task, hooks)
    first = [state.server["clients"][name][0].double() for name in ("shared", "personal")]
    released = ReleasedServer(task, first)
    for number in (1, 2, 3):
        state, row = train_round(task.at(number), hooks, state)
        chosen = [entry.client_id for entry in row.updates]
        released.step(task.at(number), chosen)
        for client, values in released.own.items():
            for name, value in zip(("shared", "personal"), values, strict=True):
                found = state.server["clients"][name][client].double()
                torch.testing.assert_close(found, value, **CLOSE)
    assert min((released.own[client][1] - first[1]).norm() for client in chosen) > 1e-3

    # the server's model, and what a client that takes no part downloads
    mean = sum(released.own[client][0] for client in task.data.participating) / 5
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
