"""SGPT against its equations in float64, and against what a port of it can get wrong."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from changed_task import with_facts, with_training
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import tensor_map
from fedloom.federated.evaluate import compute_artefact, received_by
from fedloom.federated.groups import iterate_examples
from fedloom.federated.round import initial_state, select_for_round, train_round
from fedloom.federated.state import State
from fedloom.federated.task import cohort
from fedloom.toolbox import SERVER_MODEL, cosine_similarity, train_locally
from first_round import first_cohort, module, upload

losses, prompted, selection = (module("sgpt", name) for name in ("losses", "prompted", "selection"))

EXACTLY = {"atol": 0, "rtol": 0}


def reference_group(h, keys, selected, floor):
    """Eq. 6 for one image, group by group."""
    q = selected / max(selected.sum(), 1)
    scores = [
        (h @ k / np.linalg.norm(h) / np.linalg.norm(k) - 1) * (share + floor)
        for k, share in zip(keys, q, strict=True)
    ]
    return int(np.argmax(scores))


@pytest.mark.parametrize(("variant", "floor"), [("paper", 1e-12), ("released", 5e-4)])
@pytest.mark.parametrize(
    "counted", [(0, 0, 0, 0), (7, 0, 40, 0), (1, 0, 4000, 0), (10, 30, 20, 40)]
)
def test_selection_while_training_is_equation_6(variant, floor, counted):
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(2, 50, 8)), rng.normal(size=(2, 4, 8))
    selected = np.array([counted, counted[::-1]], float)
    cosine = cosine_similarity(*(torch.from_numpy(x) for x in (queries, keys)))
    options = SimpleNamespace(frequency=True, majority=False, variant=variant)
    mask = torch.ones(2, 50, dtype=torch.bool)
    found = selection.group_while_training(options, cosine, torch.from_numpy(selected), mask)
    for k in range(2):
        expected = [reference_group(h, keys[k], selected[k], floor) for h in queries[k]]
        assert found[k].tolist() == expected
        assert len(set(expected)) > 1
    if variant == "paper" and 0 in counted and any(counted):
        assert set(found[0].tolist()) == {1, 3}, "those that nobody chose yet, by the nearest key"


def test_a_batch_takes_the_group_of_most_of_its_images():
    cosine = torch.eye(3)[torch.tensor([[0, 1, 1, 2, 2, 2], [2, 2, 0, 0, 0, 1]])]  # [K, B, G]
    mask = torch.tensor([[True] * 3 + [False] * 3, [True] * 6])
    options = SimpleNamespace(frequency=False, majority=True)
    found = selection.group_while_training(options, cosine, None, mask)
    assert found.tolist() == [[1] * 6, [0] * 6]


def reference_logits(model, image, params, group, released):
    """One image [T, d] through timm's blocks in float64, with its tokens kept in named places."""
    cls, shared, grouped, patches = image[:1], [], [], image[1:]
    for j, block in enumerate(model.blocks, 1):
        if j in (1, 2, 3):
            shared = [*(shared if released else []), params["shared_prompts"][j - 1]]
        if group is not None and j in (4, 5, 6):
            mine = params["group_prompts"][group, j - 4]
            grouped = [*(grouped if released else []), mine]
        parts = [cls, *grouped, *shared, patches]
        tokens = block(torch.cat(parts)[None])[0].split([len(part) for part in parts])
        cls, patches = tokens[0], tokens[-1]
        grouped, shared = list(tokens[1 : 1 + len(grouped)]), list(tokens[1 + len(grouped) : -1])
    return model.norm(torch.cat([cls, *grouped])).mean(0) @ params["head"].T


@pytest.fixture
def drawn(tiny):
    """make(**options): a task, its hooks, and two clients with different parameters."""

    def make(**options):
        task, hooks = tiny("sgpt", groups=4, shared_prompts=2, group_prompts=3, **options)
        ids, rng = task.data.participating[:2], torch.Generator().manual_seed(0)
        shapes = hooks.init_server(task=task)["params"]
        params = tensor_map(lambda v: torch.randn(2, *v.shape, generator=rng), shapes)
        selected = torch.tensor([[5.0, 9, 1, 3], [4, 4, 4, 6]]).double()
        received = {"params": params, "constants": {"selected": selected}}
        batch = task.data.batch([task.data.train[k][:6] for k in ids])
        return task, hooks, received, cohort(task, ids, [{}, {}]), batch

    return make


def reference_query(model, token, query_block, released):
    """h(x) [d] in float64 from a class token [d]; the released code norms and rectifies it."""
    h = token.double()
    if released:  # the cached final token is normed already
        h = (model.norm(h) if query_block else h).relu()
    return h.numpy()


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("query_block", [0, 7])
def test_both_losses_are_equations_10_and_11(drawn, variant, query_block):
    """One image at a time, in float64, with the client's own parameters."""
    task, _, received, clients, batch = drawn(variant=variant, query_block=query_block)
    released, norm = variant == "released", task.backbone.model.norm
    norm.weight.copy_(torch.linspace(-1, 2, 16))  # as if it had been trained
    norm.bias.copy_(torch.linspace(0.5, -1, 16))
    shared = losses.shared_loss(task, received["params"], received, clients, batch)
    total, adds = losses.group_loss(task, received["params"], received, clients, batch)
    model = deepcopy(task.backbone.model).double()
    seen = batch.class_tokens(query_block or None)
    images = task.backbone.embed(batch.images).double()
    chosen = set()
    for k in range(2):
        own = {name: value[k].double() for name, value in received["params"].items()}
        keys, floor = own["keys"].numpy(), 5e-4 if released else 0
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


@pytest.mark.parametrize(
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
def test_table_3(tiny, options, expected):
    """Trained parameters and their order, by hand: one phase of local training after the other."""
    task, hooks = tiny("sgpt", groups=3, **options)
    before = initial_state(task, hooks)
    first, second = ("head", "shared_prompts"), ("head", "group_prompts", "keys")
    trained = {"I": first, "II": second, "I + II": (*first, *second)}
    names = set().union(*(trained[block] for block in expected))
    assert set(before.server["params"]) == names
    received, clients = received_by(task, hooks, before, task.data.participating[:3])
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    params, counts = received["params"], received.get("constants")
    total, steps = np.zeros(3), np.zeros(3)
    for phase, block in enumerate(expected):
        given = {"params": params, "train": trained[block], "phase": phase}
        if block == "I":
            last = train_locally(task.at(1), losses.shared_loss, received, clients, **given)
        else:
            last = train_locally(
                task.at(1), losses.group_loss, received, clients, counters=counts, **given
            )
            selected = last.counters["selected"] - counts["selected"]
        params = last.params
        total += np.multiply(last.loss, last.steps)
        steps += last.steps
    for k, update in enumerate(updates):
        over_all_steps = pytest.approx(total[k] / steps[k], rel=1e-12)
        assert update.metrics["train_loss"] == over_all_steps, "of both blocks"
        assert set(update.payload["params"]) == names
        for name in names:
            assert torch.equal(update.payload["params"][name], params[name][k]), name
        if "keys" in names:
            assert torch.equal(update.payload["selected"], selected[k])
    after, row = train_round(task.at(1), hooks, before)
    # 3 clients; head 4 x 16, 3 tokens, 3 x 3 group tokens, 3 keys, counts of 8 bytes
    kinds = {"head": 64, "shared_prompts": 48, "group_prompts": 144, "keys": 48}
    floats = sum(kinds[name] for name in names)
    assert row.bytes_up == 3 * (4 * floats + 8 * 3 * ("keys" in names))
    for name, value in after.server["params"].items():
        assert not torch.equal(value, before.server["params"][name]), name


def selections(task, hooks, keys, released, between_clients):
    """Selections by client of two rounds [6, G], image by image, if nothing is ever learnt."""
    features, so_far, rows = task.data.tokens(None), np.zeros(4), []
    for number in (1, 2):
        seen = so_far.copy()
        for client in sorted(select_for_round(task.at(number), hooks, initial_state(task, hooks))):
            own = np.zeros(4)
            for row in task.data.train[client]:
                h = reference_query(None, features[row], 0, released)
                own[reference_group(h, keys, seen, 5e-4 if released else 1e-12)] += 2  # epochs
            seen = seen + own if between_clients else seen
            so_far = so_far + own
            rows.append(own.tolist())
    return rows


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_q_changes_between_rounds_or_between_clients(tiny, variant):
    """Never within a client: in the paper's reading all clients see the counts of earlier rounds.

    In the released code those of the clients that trained before count as well.
    """
    task, hooks = tiny("sgpt", groups=4, variant=variant)
    task = with_features(task, np.ones((4, 16)), 2.0)
    task = with_training(task, lr=0.0)
    state, released = initial_state(task, hooks), variant == "released"
    keys = state.server["params"]["keys"].double().numpy()
    expected = selections(task, hooks, keys, released, between_clients=released)
    assert expected != selections(task, hooks, keys, released, between_clients=not released)
    for number in (1, 2):
        state, _ = train_round(task.at(number), hooks, state)
    assert state.server["history"]["selected"].tolist() == expected
    assert state.server["constants"]["selected"].tolist() == np.sum(expected, 0).tolist()


def uploaded(client, examples, selected, key, prompt):
    """What a client sends, its keys and prompts all of one value."""
    shapes = {"head": (4, 16), "shared_prompts": (3, 1, 16), "group_prompts": (3, 3, 1, 16)}
    params = {name: torch.full(shape, float(prompt)) for name, shape in shapes.items()}
    params["keys"] = torch.full((3, 16), float(key))
    return upload(params, examples, client, selected=torch.tensor(selected).double())


def test_two_rounds_of_the_server_by_hand(tiny):
    """Momentum 0.25 on keys, 0.75 on group prompts; nobody chooses group 2."""
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
    """By hand: 50 selections, 52 and none; momentum mixes in the initial keys and prompts."""
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


def with_features(task, centres, noise):
    """The task with a feature cache of our own: class centres [C, d] and noise."""
    rng = np.random.default_rng(0)
    labels = task.data.labels
    features = centres[labels.numpy()] + noise * rng.normal(size=(len(labels), centres.shape[1]))
    cached = torch.from_numpy(features).float()
    return replace(task, data=replace(task.data, tokens=lambda place: cached))


def test_the_frequencies_spread_a_collapsed_start(tiny):
    """All images lie in one cone around the first key; plain argmax never leaves it."""
    centres = np.full((4, 16), 0.0)
    centres[:, 0] = 3
    centres[range(4), range(1, 5)] = 1
    used = {}
    for frequency, rounds in ((True, 12), (False, 3)):
        task, hooks = tiny("sgpt", groups=4, frequency=frequency)
        task = with_features(task, centres, 0.05)
        task = with_training(task, lr=0.5)
        state = initial_state(task, hooks)
        state.server["params"]["keys"] = torch.eye(16)[[0, 9, 10, 11]]
        images = compute_artefact(task, hooks, state, "groups")
        assert set(images["group"]) == {0}, "collapsed"
        for number in range(1, rounds + 1):
            state, _ = train_round(task.at(number), hooks, state)
        used[frequency] = set(compute_artefact(task.at(rounds), hooks, state, "groups")["group"])
        share = state.server["constants"]["selected"]
        share = share / share.sum()
        assert (share.min() > 0.05) if frequency else (share[0] == 1), share
    assert used[False] == {0}
    assert len(used[True]) > 1, "also by Eq. 5 alone"


def test_keys_and_prompts_by_coarse_label_select_the_labels(tiny):
    """Classes a and c are of one coarse label, b and d of the other; also for held-out clients."""
    task, hooks = tiny("sgpt", groups=2)
    coarse = torch.tensor([0, 1, 0, 1])
    centres = np.zeros((4, 16))
    centres[range(4), coarse] = 2
    centres[range(4), range(4, 8)] = 1
    task = with_features(task, centres, 0.1)
    state = initial_state(task, hooks)
    params = state.server["params"]
    rng = torch.Generator().manual_seed(0)
    for name, value in params.items():
        params[name] = torch.randn(value.shape, generator=rng)
    params["keys"] = torch.eye(16)[:2]
    images = compute_artefact(task.at(1), hooks, state, "groups")
    fine = [("alpha", "beta", "gamma", "long delta").index(name) for name in images["class"]]
    assert images["group"] == coarse[fine].tolist()
    assert sum(images["test"]) == sum(map(len, task.data.test)) < len(fine) == 120
    clusters = set(zip(images["group"], images["cluster"], strict=True))
    assert len(clusters) == 2, "k-means finds the same two, by whichever names"
    for ids in ([SERVER_MODEL], list(range(task.data.num_clients))):
        received, clients = received_by(task, hooks, state, ids)
        rows = [task.data.test[0]] if ids == [SERVER_MODEL] else task.data.test
        batch = next(iterate_examples(task, rows))
        found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
        given = coarse[batch.labels]
        expected = prompted.logits(task, received["params"], batch, given)
        torch.testing.assert_close(found, expected)
        wrong = prompted.logits(task, received["params"], batch, 1 - given)
        assert (found - wrong).abs().amax(-1).min() > 1e-4, "the prompt matters"


@pytest.mark.parametrize(
    "options",
    [
        {"variant": "released", "frequency": False},
        {"majority": True, "query_block": 6, "bcd": "none"},
    ],
)
def test_stacked_clients_equal_single_ones(tiny, options):
    """Beyond the contract, which tries the defaults."""
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


def test_the_majority_is_of_no_account_at_inference(drawn):
    """An image's answer would depend on the images beside it."""
    task, hooks, received, clients, batch = drawn(majority=True)
    batch.source = with_features(task, np.zeros((4, 16)), 1.0).data
    cosine = selection.cosines(task, received["params"]["keys"], batch)
    groups = cosine.argmax(-1)
    assert all(len(set(row)) > 1 for row in groups.tolist())
    found = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    expected = prompted.logits(task, received["params"], batch, groups)
    assert torch.equal(found, expected)


def test_k_means_compares_directions_of_training_images(tiny):
    """Lengths say nothing, and test images, here opposite to all others, found no cluster."""
    task, hooks = tiny("sgpt", groups=2)
    train = np.concatenate(task.data.train)
    direction, rng = np.full(120, 2), np.random.default_rng(0)
    direction[train] = rng.permutation(len(train)) % 2
    features = np.array([[1, 0], [1, 0.5], [-1, 0]])[direction] @ np.eye(2, 16)
    features = torch.from_numpy(features * rng.choice([1, 100], (120, 1))).float()
    task = replace(task, data=replace(task.data, tokens=lambda place: features))
    images = compute_artefact(task, hooks, initial_state(task, hooks), "groups")
    assert images["test"][: len(train)] == [False] * len(train)
    clusters = np.array(images["cluster"][: len(train)])
    assert {tuple(set(clusters[direction[train] == k])) for k in (0, 1)} == {(0,), (1,)}


def test_keys_start_orthonormal_and_clients_hear_them_alike(tiny):
    task, hooks = tiny("sgpt", groups=5)
    keys = hooks.init_server(task=task)["params"]["keys"]
    torch.testing.assert_close(keys @ keys.T, torch.eye(5), atol=1e-5, rtol=0)
    assert set(first_cohort(task, hooks, [0, 5])[0]) == {"params", "constants"}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"shared": False, "group": False}, "shared and group are both false; use head_tuning"),
        ({"group_blocks": [5, 13]}, r"option group_blocks \[5, 13\]: the ViT has 12"),
        ({"group_blocks": [3, 4]}, r"group_blocks \[3, 4\] must come after shared_blocks"),
        ({"query_block": 13}, "option query_block 13: the ViT has 12"),
        ({"shared_blocks": [1, 13]}, r"option shared_blocks \[1, 13\]: the ViT has 12"),
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
    before, after = start.server["params"], state.server["params"]
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved == {"head", "shared_prompts", "group_prompts", "keys"}


def test_without_groups_it_is_a_vit_with_deep_prompts(tiny):
    task, hooks = tiny("sgpt", group=False)
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    assert state.server.keys() == {"params"}
    assert state.server["params"].keys() == {"head", "shared_prompts"}
    deep, other = tiny("fedvpt_deep", blocks=task.options.shared_blocks)
    received, clients = received_by(task, hooks, state, [1, 2])
    batch = task.data.batch([task.data.test[k] for k in (1, 2)])
    found, expected = (
        h.predict(task=t, received=received, clients=clients, batch=batch)
        for t, h in ((task, hooks), (deep, other))
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert found.std() > 0.01
