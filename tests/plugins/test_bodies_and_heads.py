"""FedRep, FedBABU and FedRoD: bodies and heads that are trained apart."""

from dataclasses import replace

import pytest
import torch

import fedloom.toolbox as fl
from changed_task import with_training
from doubled import features, images_of
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL
from fedloom.common.trees import count_bytes
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import tensor_map
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
    shaken,
    slopes_of,
)


@pytest.fixture
def case(tiny):
    """Return case(name, **options): a task in float64 whose epochs are SGD steps, and its hooks."""
    return cases_of_last_weights(tiny)


def shares_of(task, ids, weighted):
    sizes = [len(task.data.train[k]) if weighted else 1 for k in ids]
    return [size / sum(sizes) for size in sizes]


@pytest.mark.parametrize("name", ["fedrep", "fedbabu"])
def test_a_head_alone_is_no_body(tiny, name):
    task, hooks = tiny(name, train="head")
    with pytest.raises(FedLoomError, match=f"{name}: option train: a head alone has no body"):
        hooks.init_server(task=task)


@pytest.mark.parametrize("weighted", [False, True])
def test_fedrep_fits_heads_to_the_body_then_the_body_to_the_heads(case, weighted):
    task, hooks = case("fedrep", epochs=2, head_epochs=3, weighted=weighted)
    start = initial_state(task, hooks)
    head = torch.zeros(4, 16).double()
    body = start.server["params"]
    state, row = train_round(task.at(1), hooks, start)
    ids = select_for_round(task.at(1), hooks, start)
    bodies = []
    losses = []
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
    received, stranger, _ = first_cohort(task, hooks, [0], state.server)  # client 0 is held out
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
    close(again["head"][0], model["head"])  # one batch has all images, so the order does not matter
    batch = task.data.batch([task.data.test[0]])
    answer = hooks.predict(
        task=task, received=received, clients=replace(clients, state=found), batch=batch
    )
    close(answer[0], answers(task, images_of(task, 0, "test")[0], model))


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_fedrod_balances_the_generic_head_and_adds_a_personal_one(case, gamma):
    task, hooks = case("fedrod", gamma=gamma)
    params, clients, batch = random_case(task, hooks)
    params = tensor_map(torch.Tensor.requires_grad_, params | clients.state)
    value, extras = module("fedrod").loss(task, params, {}, clients, batch)
    slopes = slopes_of(value, params)
    for k, client in enumerate(clients.ids):
        model = part(params, k)
        labels = batch.labels[k]
        mine = model.pop("personal_head")
        images = range(len(labels))
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


def test_clients_of_fedrod_use_both_heads_and_the_server_the_generic_one(case):
    task, hooks = case("fedrod")
    params, clients, batch = random_case(task, hooks)
    answer = hooks.predict(task=task, received={"params": params}, clients=clients, batch=batch)
    server = cohort(task, [SERVER_MODEL], [shaken(hooks.init_client(task=task, client=1))])
    first = {"params": tensor_map(lambda v: v[:1], params)}
    one = task.data.batch([batch.index[0]])
    generic = hooks.predict(task=task, received=first, clients=server, batch=one)
    model = part(params, 0)
    pixels = task.backbone.pixels(batch.images[0])
    close(generic[0], answers(task, pixels, model))
    model["head"] = model["head"] + clients.state["personal_head"][0]
    close(answer[0], answers(task, pixels, model))
    stranger = hooks.init_client(task=task, client=0)["personal_head"]
    assert not stranger.any(), "who never trained answers by the generic head"
