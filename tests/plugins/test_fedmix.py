"""FedMix: means that clients exchange, and the loss to first order."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import leaves, stack, tensor_map
from first_round import module
from whole_model_cases import (
    LAST,
    answers,
    cases_of_last_weights,
    close,
    part,
    random_case,
    slopes_of,
)


@pytest.fixture
def case(tiny):
    """Return case(name, **options): a task in float64 whose epochs are SGD steps, and its hooks."""
    return cases_of_last_weights(tiny)


def means_of(task, client):
    rows = task.data.train[client]
    images = torch.from_numpy(task.data.store.images(rows).copy()).double().mean(0)
    labels = task.data.labels[torch.from_numpy(rows)]
    return images, F.one_hot(labels, 4).double().mean(0)


def test_clients_of_fedmix_exchange_means_of_images_and_labels(tiny):
    task, hooks = tiny("fedmix", train=LAST)
    start = initial_state(task, hooks)
    state, _ = train_round(task.at(1), hooks, start)
    means = state.server["means"]
    ids = select_for_round(task.at(1), hooks, start)
    assert means["known"].nonzero()[:, 0].tolist() == ids
    for client in ids:
        images, labels = means_of(task, client)
        torch.testing.assert_close(means["images"][client, 0].double(), images)
        torch.testing.assert_close(means["labels"][client, 0].double(), labels)
    _, row = train_round(task.at(2), hooks, state)
    image = 16 * 16 * 4
    counted = {r.bytes_down for r in row.updates}
    model = sum(4 * v.numel() for _, v in leaves(state.server["params"]))
    assert counted == {model + len(ids) * (image + 4 * 4)}, "the means that there are"
    two, _ = tiny("fedmix", means=2)
    both = module("fedmix").own_means(two, 1)["images"]
    rows = two.data.train[1]
    for place, mean in enumerate(both):
        half = torch.from_numpy(two.data.store.images(rows[place::2]).copy()).float().mean(0)
        torch.testing.assert_close(mean, half)


def test_every_step_of_every_client_draws_a_known_mean(tiny):
    task, hooks = tiny("fedmix", train=LAST, means=2)
    server = initial_state(task, hooks).server
    server["means"]["images"] += torch.arange(12.0).view(6, 2, 1, 1, 1)  # tells means apart
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
    """Autograd on timm's own model gives the slope of the loss in the pixels."""
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
            x = x.requires_grad_()
            labels = batch.labels[k]
            scores = answers(task, x, model)
            own = 0.7 * F.cross_entropy(scores, labels, reduction="none")
            (slope,) = torch.autograd.grad(own.sum(), x, create_graph=True)
            two = own - 0.3 * scores.log_softmax(-1) @ means["labels"][0, 0]
            expected = two + 0.3 * (slope * other).sum((1, 2, 3))
            close(extras["reported_loss"][k], two)
            close(value[k], expected)
            close(part(slopes, k), slopes_of(expected, model))
