"""FedEM: mixtures of models, by the steps of EM."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from doubled import images_of
from fedloom.federated.round import initial_state, select_for_round
from fedloom.federated.task import cohort
from fedloom.toolbox import stack
from whole_model_cases import (
    answers,
    cases_of_last_weights,
    close,
    descend,
    part,
    shaken,
)


@pytest.fixture
def case(tiny):
    """Return case(name, **options): a task in float64 whose epochs are SGD steps, and its hooks."""
    return cases_of_last_weights(tiny)


def chances(task, models, m, pixels):
    return answers(task, pixels, part(models, m)).softmax(-1)


def test_models_of_fedem_start_from_one_backbone_with_heads_that_differ(case):
    task, hooks = case("fedem", components=3, head="drawn")
    models = hooks.init_server(task=task)["params"]
    assert all(torch.equal(v[0], v[2]) for v in models["weights"].values())
    assert not torch.equal(models["head"][0], models["head"][1])
    assert hooks.init_client(task=task, client=1)["weights"].tolist() == pytest.approx([1 / 3] * 3)


def test_drawn_mixtures_make_models_of_fedem_with_equal_heads_differ(case):
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
