"""The protocol of the released CLIP code (FedPHA, FedOTP, CoOp), option by option."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from changed_task import with_training
from fedloom.common import schema
from fedloom.common.errors import FedLoomError
from fedloom.common.key_path import KeyPath
from fedloom.config.kinds import KINDS
from fedloom.data.batch import shuffled_batches
from fedloom.data.schemes import dirichlet, disjoint
from fedloom.hooks import manifest
from fedloom.hooks.training_options import Training
from first_round import first_cohort
from partitioned import dataset, make, with_domains

# ---- training.drop_last ---------------------------------------------------------------------


@given(st.integers(1, 130), st.integers(1, 40), st.integers(1, 3))
def test_the_ragged_last_batch_is_dropped_from_a_whole_batch_on(count, size, epochs):
    rows = np.arange(1000, 1000 + count)
    kept = [list(b) for b in shuffled_batches(rows, size, epochs, 0, 1)]
    dropped = [list(b) for b in shuffled_batches(rows, size, epochs, 0, 1, drop_last=True)]
    if count < size:
        assert dropped == kept and len(kept) == epochs
    else:
        assert dropped == [batch for batch in kept if len(batch) == size]
        assert len(dropped) == epochs * (count // size)


def test_four_shots_of_ten_classes_are_one_step_and_not_two(tiny):
    task, hooks = tiny("promptfl")
    received, clients, _ = first_cohort(task, hooks)
    ids = clients.ids
    for client in ids:
        task.data.train[client] = np.resize(task.data.train[client], 40)
    moved = {}
    for drop_last in (False, True):
        at = with_training(task.at(1), batch_size=32, epochs=1, drop_last=drop_last)
        updates = hooks.client_update(task=at, received=received, clients=clients)
        moved[drop_last] = [update.payload["params"]["context"] for update in updates]
    # the only step, by hand, is w - lr (g + 0.0005 w) on the first 32 images
    for k, client in enumerate(ids):
        (rows,) = shuffled_batches(task.data.train[client], 32, 1, 0, 1, client, 0, drop_last=True)
        assert len(rows) == 32
        batch = task.data.batch([rows])
        context = received["params"]["context"][[k]].clone().requires_grad_()
        clip = task.backbone
        scores = clip.logits(batch.features, clip.text_features(context, task.data.classes))
        torch.nn.functional.cross_entropy(scores[0], batch.labels[0]).backward()
        step = context.grad + 0.0005 * context.detach()
        expected = context.detach() - task.training.lr * step
        torch.testing.assert_close(moved[True][k], expected[0], atol=1e-5, rtol=1e-4)
        assert not torch.allclose(moved[False][k], expected[0], atol=1e-4)


def test_nothing_is_dropped_unless_the_study_says_so():
    training = manifest.find_method("promptfl").merge_training()
    assert training["drop_last"] is False
    assert schema.validate(Training, {"drop_last": True}, KeyPath("x")).given == {"drop_last": True}
    with pytest.raises(FedLoomError, match=r"x: drop_last: must be"):
        schema.validate(Training, {"drop_last": 1}, KeyPath("x"))


# ---- partitions.seed ------------------------------------------------------------------------

EVERY_SCHEME = {
    "pathological": {"clients": 6, "classes_per_client": 4},
    "disjoint": {"clients": 5},
    "dirichlet": {"clients": 4, "alpha": 5.0, "kind": "client"},
    "iid": {"clients": 6},
    "imbalance": {"clients": 10, "dominant_share": 0.5, "dominant_classes": 0.1},
    "domain": {"clients_per_domain": 2, "alpha": 5.0, "kind": "class"},
}


@pytest.mark.parametrize("scheme", EVERY_SCHEME)
def test_a_partition_with_a_seed_is_the_same_in_all_runs(scheme):
    """Classes, images, shots and held-out clients are those of the run with that seed."""
    spec = {"scheme": scheme, "held_out": 0.2, "shots": 1, **EVERY_SCHEME[scheme]}
    data = with_domains(0) if scheme == "domain" else dataset(0)
    fixed = [make({**spec, "seed": 7}, seed, data) for seed in (0, 1)]
    assert fixed[0].equals(fixed[1])
    assert fixed[0].equals(make(spec, 7, data)) and not fixed[0].equals(make(spec, 0, data))
    keys = EVERY_SCHEME[scheme] | {"seed": 7}
    assert schema.validate(KINDS["partitions"][scheme], keys, KeyPath("x")).seed == 7


# ---- dirichlet, kind class_capped -----------------------------------------------------------


def _as_authors(labels, clients, alpha, rng):
    """Return the numbers of images by client and class [K, C] of the authors' loop, unrounded."""
    held = np.zeros((clients, labels.max() + 1))
    for c in range(labels.max() + 1):
        proportions = rng.dirichlet(np.repeat(alpha, clients))
        for client in range(clients):
            proportions[client] *= held[client].sum() < len(labels) / clients
        held[:, c] = proportions / proportions.sum() * (labels == c).sum()
        rng.permutation((labels == c).sum())  # our code draws the images here
    return held


@given(st.integers(2, 8), st.sampled_from([0.3, 0.5, 5.0]), st.integers(0, 200))
def test_clients_with_their_equal_share_get_nothing_of_later_classes(clients, alpha, seed):
    labels = np.repeat(np.arange(5), 4000)
    spec = {"clients": clients, "alpha": alpha, "kind": "class_capped"}
    owner = dirichlet.divide(labels, spec, np.random.default_rng(seed))
    expected = _as_authors(labels, clients, alpha, np.random.default_rng(seed))
    for c in range(5):
        before = np.bincount(owner[labels < c], minlength=clients)
        found = np.bincount(owner[labels == c], minlength=clients)
        assert (found[before >= len(labels) / clients] == 0).all()
    sizes = np.bincount(owner, minlength=clients)
    near = np.abs(expected.cumsum(1) - len(labels) / clients).min() > 5  # rounding decides nothing
    if near:
        assert np.abs(sizes - expected.sum(1)).max() <= 5


def test_a_proportion_that_vanishes_is_not_divided_by():
    labels = np.repeat(np.arange(30), 20)
    spec = {"clients": 3, "alpha": 1e-5, "kind": "class_capped"}
    owner = dirichlet.divide(labels, spec, np.random.default_rng(0))
    assert np.bincount(owner, minlength=3).sum() == 600


# ---- dirichlet, min_images ------------------------------------------------------------------


def test_classes_draw_again_until_every_client_has_enough():
    """PFPT's released code draws again; this division, with alpha 0.1, is its hardest one.

    The result is the first draw that suffices.
    """
    labels = np.repeat(np.arange(10), 500)
    spec = {"clients": 40, "alpha": 0.1, "kind": "class"}
    rng = np.random.default_rng(0)
    draws = 0
    while True:
        owner = dirichlet.divide(labels, spec, rng)
        draws = draws + 1
        if np.bincount(owner, minlength=40).min() >= 5:
            break
    assert draws > 1, "else drawing once would do"
    found = dirichlet.divide(labels, spec | {"min_images": 5}, np.random.default_rng(0))
    assert np.array_equal(found, owner)


def test_images_that_no_draw_gives_are_one_line(monkeypatch):
    monkeypatch.setattr(dirichlet, "MOST_DRAWS", 3)
    spec = {"clients": 4, "alpha": 0.1, "kind": "class", "min_images": 26}
    with pytest.raises(FedLoomError, match="min_images: in 3 draws"):
        dirichlet.divide(np.repeat([0, 1], 50), spec, np.random.default_rng(0))


# ---- disjoint, rest_to_last -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "even", "released"),
    [
        (100, [10] * 10, [10] * 10),
        (102, [10] * 8 + [11] * 2, [10] * 9 + [12]),  # Flowers102
        (47, [4] * 3 + [5] * 7, [5] * 9 + [2]),  # DTD
        (37, [3] * 3 + [4] * 7, [4] * 9 + [1]),  # OxfordPets
    ],
)
def test_the_last_of_ten_clients_holds_the_rest_of_the_classes(classes, even, released):
    labels = np.repeat(np.arange(classes), 3)
    for rest_to_last, expected in ((False, even), (True, released)):
        spec = {"clients": 10, "rest_to_last": rest_to_last}
        owner = disjoint.divide(labels, spec, np.random.default_rng(0))
        held = [len(set(labels[owner == k])) for k in range(10)]
        assert (held if rest_to_last else sorted(held)) == expected
        assert sum(held) == classes, "no class has two clients"
        again = disjoint.divide(labels, spec, np.random.default_rng(1))
        assert (again != owner).any(), "which classes is drawn"


def test_a_last_client_without_a_class_is_refused():
    labels = np.repeat(np.arange(16), 3)
    spec = {"clients": 10, "rest_to_last": True}
    with pytest.raises(FedLoomError, match="9 clients with 2 classes each leave none of the 16"):
        disjoint.divide(labels, spec, np.random.default_rng(0))
