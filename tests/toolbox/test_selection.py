"""Key-query selection against NumPy, and means over the clients that picked a prompt."""

import numpy as np
import pytest
import torch

from changed_task import with_limits
from fedloom.common.ids import SERVER_MODEL
from fedloom.federated.task import cohort
from fedloom.toolbox import (
    Update,
    gather_prompts,
    mean_of_picked,
    prompts_for_prediction,
    top_prompts,
    train_picked,
)


def _pools(clients, size, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(clients, size, width, generator=generator)


def _by_hand(queries, keys, count):
    """Return the picks of votes, image by image; sums of cosines, then indices break ties."""
    queries = queries.double().numpy()
    keys = keys.double().numpy()
    votes = np.zeros(len(keys))
    total = np.zeros(len(keys))
    for query in queries:
        cosine = keys @ query / (np.linalg.norm(keys, axis=1) * np.linalg.norm(query))
        votes[np.argsort(-cosine)[:count]] += 1
        total += cosine
    ranked = sorted(range(len(keys)), key=lambda i: (-votes[i], -total[i], i))
    return sorted(ranked[:count])


def _task(tiny, features):
    """Return a task whose cached features are those given, from the first image on."""
    task, _ = tiny("head_tuning")
    table = torch.zeros(len(task.data.labels), features.shape[1])
    table[: len(features)] = features
    task.data.tokens = lambda block: table
    task.data.train[:] = [np.arange(len(features)) for _ in task.data.train]
    return task


@pytest.mark.parametrize("at_once", [256, 12])
def test_every_training_image_votes(tiny, at_once):
    """Images come in one batch, or in several whose last rows are padding of smaller clients."""
    task = with_limits(tiny("head_tuning")[0], images=at_once, features=at_once)
    ids = task.data.participating
    task.data.train[ids[0]] = task.data.train[ids[0]][:2]
    clients = cohort(task, ids, [{} for _ in ids])
    for seed in range(5):
        pools = _pools(len(ids), 7, task.backbone.width, seed)
        actual = top_prompts(task, clients, pools, 3)
        for k, client in enumerate(ids):
            queries = task.data.tokens(None)[task.data.train[client]]
            assert actual[k].tolist() == _by_hand(queries, pools[k], 3)


def test_padding_does_not_vote(tiny):
    """A client has three images beside one with many, so its first image fills up its batch."""
    axes = torch.eye(4)
    task = _task(tiny, torch.cat([axes[[0, 1, 1]], axes[[2]].expand(9, 4)]))
    a, b = task.data.participating[:2]
    task.data.train[a], task.data.train[b] = np.arange(3), np.arange(3, 12)
    clients = cohort(task, [a, b], [{}, {}])
    actual = top_prompts(task, clients, axes.expand(2, 4, 4), 1)
    assert actual.tolist() == [[1], [2]]


def test_padding_breaks_no_tie(tiny):
    """Two prompts have a vote each; the second is nearer, but not to the image that fills up."""
    axes = torch.eye(4)
    task = _task(tiny, torch.cat([axes[[0, 1]], axes[[2]].expand(9, 4)]))
    a, b = task.data.participating[:2]
    task.data.train[a], task.data.train[b] = np.arange(2), np.arange(2, 11)
    clients = cohort(task, [a, b], [{}, {}])
    nearer = torch.stack([axes[0] + axes[3], axes[1]])
    assert top_prompts(task, clients, nearer.expand(2, 2, 4), 1)[0].tolist() == [1]


def test_ties_go_to_the_nearer_prompt_then_to_the_first(tiny):
    axes = torch.eye(4)
    task = _task(tiny, axes[[0, 1]])
    clients = cohort(task, task.data.participating[:1], [{}])
    even = torch.stack([axes[3], axes[0], axes[1]])[None]
    assert top_prompts(task, clients, even, 1).tolist() == [[1]]
    nearer = torch.stack([axes[3], axes[0] + axes[2], axes[1]])[None]  # both have a vote
    assert top_prompts(task, clients, nearer, 1).tolist() == [[2]]
    # two equal prompts have equal votes and equal sums, in whichever order they are
    twins = torch.stack([axes[3], axes[0] + axes[1], axes[0] + axes[1]])[None]
    assert top_prompts(task, clients, twins, 2).tolist() == [[1, 2]]


def test_a_small_pool_is_taken_whole(tiny):
    task, _ = tiny("head_tuning")
    clients = cohort(task, task.data.participating[:2], [{}, {}])
    pools = _pools(2, 3, task.backbone.width)
    assert top_prompts(task, clients, pools, 5).tolist() == [[0, 1, 2]] * 2
    batch = task.data.batch([task.data.test[k][:2] for k in clients.ids])
    assert torch.equal(prompts_for_prediction(task, clients, batch, pools, 3), pools)


def test_a_client_predicts_with_its_own_choice_and_the_server_with_each_images(tiny):
    task, _ = tiny("head_tuning")
    pools = _pools(1, 6, task.backbone.width).expand(2, -1, -1)
    ids = task.data.participating[:2]
    clients = cohort(task, ids, [{}, {}])
    batch = task.data.batch([task.data.test[k][:4] for k in ids])
    chosen = gather_prompts(pools, top_prompts(task, clients, pools, 2))
    assert chosen.shape == (2, 2, task.backbone.width)
    assert torch.equal(prompts_for_prediction(task, clients, batch, pools, 2), chosen)

    server = cohort(task, [SERVER_MODEL], [{}])
    rows = np.concatenate(task.data.test)[:7]
    actual = prompts_for_prediction(task, server, task.data.batch([rows]), pools[:1], 2)
    assert actual.shape == (1, 7, 2, task.backbone.width)
    for i, row in enumerate(rows):
        indices = _by_hand(task.data.tokens(None)[[row]], pools[0], 2)
        assert torch.equal(actual[0, i], pools[0, indices])


def test_a_client_starts_from_the_prompts_it_picked(tiny):
    task, _ = tiny("head_tuning")
    clients = cohort(task, task.data.participating[:2], [{}, {}])
    pools = _pools(1, 6, task.backbone.width).expand(2, -1, -1)
    received = {"params": {"head": torch.ones(2, 1), "shared_prompts": pools}, "more": 1}
    task.options.prompts = 2
    seen = []

    def loss(task, params, received, clients, batch):
        seen.append(received)
        return params["shared_prompts"].sum((1, 2))[:, None] + 0 * batch.mask

    updates = train_picked(task, received, clients, loss)
    for k, update in enumerate(updates):
        started = seen[0]["params"]["shared_prompts"][k]
        assert torch.equal(started, pools[k][update.payload["indices"]])
        assert update.payload["params"]["shared_prompts"].shape == started.shape
    assert seen[0]["more"] == 1


def _upload(examples, head, indices, *prompts):
    params = {"head": torch.tensor([head]), "shared_prompts": torch.tensor(prompts)}
    return Update({"params": params, "indices": torch.tensor(indices)}, {}, examples, {})


def test_a_prompt_is_averaged_over_those_who_picked_it_and_kept_if_nobody_did():
    server = {"head": torch.zeros(1), "shared_prompts": torch.full((4, 1), 9.0)}
    updates = [
        _upload(1, 1.0, [0, 2], [1.0], [2.0]),
        _upload(3, 5.0, [2, 3], [6.0], [7.0]),
    ]
    mean = mean_of_picked(server, updates)
    assert mean["shared_prompts"].flatten().tolist() == [1, 9, 4, 7]
    assert mean["head"].tolist() == [3]
    mean = mean_of_picked(server, updates, weighted=True)
    assert mean["shared_prompts"].flatten().tolist() == [1, 9, (2 + 3 * 6) / 4, 7]
    assert mean["head"].tolist() == [4]
