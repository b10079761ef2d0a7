"""SGPT: its losses, rounds and options, against its equations in float64."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from changed_task import with_facts, with_training
from fedloom.common.errors import FedLoomError
from fedloom.federated.cohorts import prepare_clients
from fedloom.federated.evaluate import compute_artefact
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.toolbox import train_locally
from first_round import first_cohort, upload
from sgpt_cases import drawn_task, losses, reference_group, reference_query


@pytest.fixture
def drawn(tiny):
    """Return make(**options): a task, its hooks, and two clients with different parameters."""
    return drawn_task(tiny)


def reference_logits(model, image, params, group, released):
    """Return the logits of one image [T, d] by timm's blocks, in float64.

    Its class token, group prompts, shared prompts and patches are kept apart by name.
    """
    cls = image[:1]
    shared = []
    grouped = []
    patches = image[1:]
    for j, block in enumerate(model.blocks, 1):
        if j in (1, 2, 3):
            shared = [*(shared if released else []), params["shared_prompts"][j - 1]]
        if group is not None and j in (4, 5, 6):
            mine = params["group_prompts"][group, j - 4]
            grouped = [*(grouped if released else []), mine]
        parts = [cls, *grouped, *shared, patches]
        tokens = block(torch.cat(parts)[None])[0].split([len(part) for part in parts])
        cls = tokens[0]
        patches = tokens[-1]
        grouped, shared = list(tokens[1 : 1 + len(grouped)]), list(tokens[1 + len(grouped) : -1])
    return model.norm(torch.cat([cls, *grouped])).mean(0) @ params["head"].T


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("query_block", [0, 7])
def test_both_losses_are_equations_10_and_11(drawn, variant, query_block):
    """The losses are computed one image at a time, in float64, with a client's own parameters."""
    task, _, received, clients, batch = drawn(variant=variant, query_block=query_block)
    released = variant == "released"
    norm = task.backbone.model.norm
    norm.weight.copy_(torch.linspace(-1, 2, 16))  # as if the norm had been trained
    norm.bias.copy_(torch.linspace(0.5, -1, 16))
    shared = losses.shared_loss(task, received["params"], received, clients, batch)
    total, adds = losses.group_loss(task, received["params"], received, clients, batch)
    model = deepcopy(task.backbone.model).double()
    seen = batch.class_tokens(query_block or None)
    images = task.backbone.embed(batch.images).double()
    chosen = set()
    for k in range(2):
        own = {name: value[k].double() for name, value in received["params"].items()}
        keys = own["keys"].numpy()
        floor = 5e-4 if released else 0
        counts = received["constants"]["selected"][k].numpy()
        for b, label in enumerate(batch.labels[k]):
            h = reference_query(model, seen[k, b], query_block, released)
            group = reference_group(h, keys, counts, floor)
            key = h @ keys[group] / np.linalg.norm(h) / np.linalg.norm(keys[group])
            alone = reference_logits(model, images[k, b], own, None, released)
            both = reference_logits(model, images[k, b], own, group, released)
            cross = [-scores.log_softmax(-1)[label].item() for scores in (alone, both)]
            assert shared[k, b].item() == pytest.approx(cross[0], rel=1e-4, abs=1e-4)
            assert total[k, b].item() == pytest.approx(cross[1] - key, rel=1e-4, abs=1e-4)
            reported = adds["reported_loss"][k, b].item()
            assert reported == pytest.approx(cross[1], rel=1e-4, abs=1e-4)
            assert adds["selected"][k, b].tolist() == np.eye(4)[group].tolist()
            chosen.add(group)
    assert len(chosen) > 1


TABLE_3 = pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["I", "II"]),
        ({"bcd": "group_first"}, ["II", "I"]),
        ({"bcd": "none"}, ["I + II"]),
        ({"group": False}, ["I"]),
        ({"shared": False}, ["II"]),
        ({"shared": False, "bcd": "group_first"}, ["II"]),
        ({"group": False, "bcd": "none"}, ["I"]),
    ],
)
BLOCKS = {"I": ("head", "shared_prompts"), "II": ("head", "group_prompts", "keys")}
BLOCKS["I + II"] = (*BLOCKS["I"], *BLOCKS["II"])


def names_of(blocks):
    """Return the names of the parameters that these blocks train."""
    return set().union(*(BLOCKS[block] for block in blocks))


def train_blocks(task, received, clients, blocks):
    """Train the blocks one after the other.

    Returns:
        The parameters, the mean loss of each client over all steps, and the selections [K, G] that
        block II added (None without it).
    """
    params = received["params"]
    counts = received.get("constants")
    selected = None
    total = np.zeros(len(clients))
    steps = np.zeros(len(clients))
    for phase, block in enumerate(blocks):
        given = {"params": params, "train": BLOCKS[block], "phase": phase}
        if block == "I":
            last = train_locally(task, losses.shared_loss, received, clients, **given)
        else:
            given["counters"] = counts
            last = train_locally(task, losses.group_loss, received, clients, **given)
            selected = last.counters["selected"] - counts["selected"]
        params = last.params
        total += np.multiply(last.loss, last.steps)
        steps += last.steps
    return params, total / steps, selected


@TABLE_3
def test_the_blocks_of_table_3_train_one_after_the_other(tiny, options, expected):
    task, hooks = tiny("sgpt", groups=3, **options)
    before = initial_state(task, hooks)
    names = names_of(expected)
    assert set(before.server["params"]) == names
    received, clients = prepare_clients(task, hooks, before, task.data.participating[:3])
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    params, loss, selected = train_blocks(task.at(1), received, clients, expected)
    for k, update in enumerate(updates):
        over_all_steps = pytest.approx(loss[k], rel=1e-12)
        assert update.metrics["train_loss"] == over_all_steps, "of both blocks"
        assert set(update.payload["params"]) == names
        for name in names:
            assert torch.equal(update.payload["params"][name], params[name][k]), name
        if "keys" in names:
            assert torch.equal(update.payload["selected"], selected[k])


@TABLE_3
def test_clients_of_table_3_send_the_blocks_that_they_train(tiny, options, expected):
    """Three clients send a head of 4 x 16, 3 tokens, 3 x 3 group tokens, 3 keys and 3 counts."""
    task, hooks = tiny("sgpt", groups=3, **options)
    before = initial_state(task, hooks)
    after, row = train_round(task.at(1), hooks, before)
    names = names_of(expected)
    kinds = {"head": 64, "shared_prompts": 48, "group_prompts": 144, "keys": 48}
    floats = sum(kinds[name] for name in names)
    assert row.bytes_up == 3 * (4 * floats + 8 * 3 * ("keys" in names))
    for name, value in after.server["params"].items():
        assert not torch.equal(value, before.server["params"][name]), name


def uploaded(client, examples, selected, key, prompt):
    """Return what a client sends, with all keys of one value and all prompts of another."""
    shapes = {"head": (4, 16), "shared_prompts": (3, 1, 16), "group_prompts": (3, 3, 1, 16)}
    params = {name: torch.full(shape, float(prompt)) for name, shape in shapes.items()}
    params["keys"] = torch.full((3, 16), float(key))
    return upload(params, examples, client, selected=torch.tensor(selected).double())


def test_two_rounds_of_the_server_by_hand(tiny):
    """Keys have momentum 0.25, group prompts 0.75; nobody chooses group 2."""
    task, hooks = tiny("sgpt", groups=3, key_momentum=0.25, prompt_momentum=0.75)
    start = hooks.init_server(task=task)
    sent = {
        1: [uploaded(4, 10, (30, 0, 0), 1, 2), uploaded(1, 30, (10, 20, 0), 5, 6)],
        2: [uploaded(0, 10, (0, 3, 0), 9, 7), uploaded(2, 10, (0, 1, 0), 1, 9)],
    }
    one = hooks.aggregate(task=task.at(1), server=start, updates=sent[1])
    keys = one["params"]["keys"]
    assert keys[:, 0].tolist()[:2] == [(30 * 1 + 10 * 5) / 40, 5]
    assert torch.equal(keys[2], start["params"]["keys"][2])
    for name in ("head", "shared_prompts", "group_prompts"):  # by images: no momentum at t = 0
        torch.testing.assert_close(one["params"][name], torch.full_like(one["params"][name], 5))
    two = hooks.aggregate(task=task.at(2), server=one, updates=sent[2])
    keys = two["params"]["keys"]
    assert keys[1, 0].item() == pytest.approx(0.25 * 5 + 0.75 * (3 * 9 + 1) / 4)
    assert torch.equal(keys[[0, 2]], one["params"]["keys"][[0, 2]]), "to the bit"
    prompts = two["params"]["group_prompts"]
    torch.testing.assert_close(prompts, torch.full_like(prompts, 0.75 * 5 + 0.25 * 8))
    for name in ("head", "shared_prompts"):
        torch.testing.assert_close(two["params"][name], torch.full_like(two["params"][name], 8))
    assert two["constants"]["selected"].tolist() == [40, 24, 0]
    assert two["history"]["client"].tolist() == [1, 4, 0, 2]
    assert two["history"]["round"].tolist() == [1, 1, 2, 2]
    counts = [[10, 20, 0], [30, 0, 0], [0, 3, 0], [0, 1, 0]]
    assert two["history"]["selected"].tolist() == counts
    table = compute_artefact(task, hooks, State(two), "group_counts")
    assert table["count"] == [count for row in counts for count in row]
    rows = list(zip(*(table[name] for name in ("round", "client", "group")), strict=True))
    assert rows[5:8] == [(1, 4, 2), (2, 0, 0), (2, 0, 1)]


def test_released_averages_small_groups_alike_and_has_momentum_from_round_1(tiny):
    """Groups have 50, 52 and no selections; momentum mixes in the initial keys and prompts."""
    task, hooks = tiny(
        "sgpt", groups=3, variant="released", key_momentum=0.25, prompt_momentum=0.75
    )
    start = hooks.init_server(task=task)
    assert (start["params"]["shared_prompts"] == 0).all()
    sent = [uploaded(0, 10, (50, 39, 0), 1, 2), uploaded(1, 30, (0, 13, 0), 5, 6)]
    one = hooks.aggregate(task=task.at(1), server=start, updates=sent)
    means = torch.tensor([3, (39 * 1 + 13 * 5) / 52, 3])[:, None]
    expected = 0.25 * start["params"]["keys"] + 0.75 * means
    torch.testing.assert_close(one["params"]["keys"], expected)
    prompts = start["params"]["group_prompts"]
    torch.testing.assert_close(one["params"]["group_prompts"], 0.75 * prompts + 0.25 * 5)
    for name in ("head", "shared_prompts"):
        torch.testing.assert_close(one["params"][name], torch.full_like(one["params"][name], 5))


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "released", "frequency": False},
        {"majority": True, "query_block": 6, "bcd": "none"},
    ],
)
def test_stacked_clients_equal_single_ones(tiny, options):
    """The contract checks this for the default options, and this test for others."""
    task, hooks = tiny("sgpt", groups=3, **options)
    task = with_training(task, epochs=1)
    states = []
    for stacked in (True, False):
        state = initial_state(task, hooks)
        for number in (1, 2):
            at = with_facts(task, stacked=stacked).at(number)
            state, _ = train_round(at, hooks, state)
        states.append(state.server)
    torch.testing.assert_close(*states, atol=1e-4, rtol=1e-4)


def test_keys_start_orthonormal_and_clients_hear_them_alike(tiny):
    task, hooks = tiny("sgpt", groups=5)
    keys = hooks.init_server(task=task)["params"]["keys"]
    torch.testing.assert_close(keys @ keys.T, torch.eye(5), atol=1e-5, rtol=0)
    assert set(first_cohort(task, hooks, [0, 5])[0]) == {"params", "constants"}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"shared": False, "group": False}, "shared and group are both false; use head_tuning"),
        (
            {"group_blocks": [5, 13]},
            r"option group_blocks must name .* 12, .* got \[5, 13\]",
        ),
        ({"group_blocks": [3, 4]}, r"group_blocks must come after shared_blocks .* got \[3, 4\]"),
        ({"query_block": 13}, "option query_block must be at most 12, .* got 13"),
        (
            {"shared_blocks": [1, 13]},
            r"option shared_blocks must name .* 12, .* got \[1, 13\]",
        ),
        ({"shared_blocks": [1, 4], "group_blocks": [4, 5]}, "must come after shared_blocks"),
    ],
)
def test_options_that_do_not_fit(tiny, options, line):
    task, hooks = tiny("sgpt", **options)
    with pytest.raises(FedLoomError, match=line):
        hooks.init_server(task=task)


def test_the_last_block_may_have_prompts_and_be_the_query(tiny):
    options = {"shared_blocks": [11], "group_blocks": [12], "query_block": 12}
    task, hooks = tiny("sgpt", **options)
    start = initial_state(task, hooks)
    state, _ = train_round(task.at(1), hooks, start)
    before = start.server["params"]
    after = state.server["params"]
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved == {"head", "shared_prompts", "group_prompts", "keys"}


def test_without_groups_it_is_a_vit_with_deep_prompts(tiny):
    task, hooks = tiny("sgpt", group=False)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert state.server.keys() == {"params"}
    assert state.server["params"].keys() == {"head", "shared_prompts"}
    deep, other = tiny("fedvpt_deep", blocks=task.options.shared_blocks)
    received, clients = prepare_clients(task, hooks, state, [1, 2])
    batch = task.data.batch([task.data.test[k] for k in (1, 2)])
    found, expected = (
        h.predict(task=t, received=received, clients=clients, batch=batch)
        for t, h in ((task, hooks), (deep, other))
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert found.std() > 0.01
