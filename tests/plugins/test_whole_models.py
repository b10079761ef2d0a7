"""Methods that train whole models: which parts, and in what order images come."""

import pytest
import torch
import torch.nn.functional as F

from changed_task import with_training
from doubled import images_of
from fedloom.common.errors import FedLoomError
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import cohort
from fedloom.toolbox import leaves, stack, tensor_map
from whole_model_cases import (
    LAST,
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


@pytest.mark.parametrize("name", ["fedrep", "per_fedavg"])  # golden numbers test others
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
    with pytest.raises(FedLoomError, match=f"{name}: option train must match .* got 'kernel'"):
        hooks.init_server(task=task)
        hooks.init_client(task=task, client=0)


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
            models = [moved, {"head": update.client_state["personal_head"]}]  # it was zero
        else:
            models = [part(moved, m) for m in range(2)]
        for model in models:
            norm = sum(v.square().sum() for _, v in leaves(model)).sqrt()
            assert float(norm) == pytest.approx(0.2 * 1e-4, rel=0.02)  # lr * clip


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
