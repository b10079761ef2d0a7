"""Per-FedAvg: its meta-gradient, and the adaptation before a test."""

import pytest
import torch
import torch.nn.functional as F

from fedloom.data.batch import shuffled_batches
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.toolbox import leaves, tensor_map
from first_round import first_cohort, module
from whole_model_cases import (
    answers,
    cases_of_last_weights,
    close,
    descend,
    entropy,
    mean_of,
    part,
    random_case,
)


@pytest.fixture
def case(tiny):
    """Return case(name, **options): a task in float64 whose epochs are SGD steps, and its hooks."""
    return cases_of_last_weights(tiny)


def slope_on(task, pixels, labels):
    """Return a function of a model that gives the gradient of its cross-entropy on some images."""
    return torch.func.grad(lambda model: F.cross_entropy(answers(task, pixels, model), labels))


@pytest.mark.parametrize(("variant", "count"), [("fo", 7), ("hf", 7), ("hf", 2)])
def test_a_step_of_per_fedavg_is_that_of_algorithm_1(case, variant, count):
    """The expected step has the exact Hessian, which `hf` approaches and `fo` leaves out."""
    task, hooks = case("per_fedavg", variant=variant, alpha=0.4, delta=1e-5)
    params, clients, _ = random_case(task, hooks)
    rows = [task.data.train[k][:count] for k in clients.ids]
    batch = task.data.batch(rows)
    found, _ = module("per_fedavg").meta_gradient(task, params, batch)
    parts = 2 if variant == "fo" else 3
    for k in range(3):
        model = part(params, k)
        pixels = task.backbone.pixels(batch.images[k])
        labels = batch.labels[k]
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
    model = start.server["params"]
    stepped = []
    state, _ = train_round(task.at(1), hooks, start)
    ids = select_for_round(task.at(1), hooks, start)
    for client in ids:
        rows = task.data.train[client]  # in the order of round 1
        rows = next(shuffled_batches(rows, 1000, 1, task.seed, 1, client, 0))
        batch = task.data.batch([rows])
        pixels = task.backbone.pixels(batch.images[0])
        labels = batch.labels[0]
        own = slope_on(task, pixels[::2], labels[::2])(model)
        adapted = tensor_map(lambda v, slope: v - 0.4 * slope, model, own)
        slope = slope_on(task, pixels[1::2], labels[1::2])(adapted)
        stepped.append(tensor_map(lambda v, slope: v - 0.2 * slope, model, slope))
    after = state.server["params"]
    close(after, mean_of(stepped, [1 / len(ids)] * len(ids)))
    received, clients, _ = first_cohort(task, hooks, [0], state.server)
    found = hooks.personalize(task=task.at(1), received=received, clients=clients)
    close(part(found, 0), descend(after, entropy(task, 0), list(after), 2, lr=0.4))
