"""Every scheme gives clients what it promises."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedloom.config.kinds import KINDS
from fedloom.data.schemes import dealing, dirichlet, iid, imbalance, pathological
from fedloom.machine.install import ROOT
from partitioned import CLASSES, make
from refusals import refused


@settings(deadline=None, max_examples=25)
@given(st.integers(5, 20), st.integers(2, CLASSES), st.integers(0, 1000))
def test_pathological_clients_hold_their_number_of_classes(clients, each, seed):
    labels = np.repeat(np.arange(CLASSES), 200)
    spec = {"clients": clients, "classes_per_client": each}
    owner = pathological.divide(labels, spec, np.random.default_rng(seed))
    held = np.stack([np.bincount(labels[owner == k], minlength=CLASSES) for k in range(clients)])
    assert ((held > 0).sum(1) == each).all()
    owners = (held > 0).sum(0)
    assert owners.max() - owners.min() <= 1
    for c in range(CLASSES):
        mine = held[:, c][held[:, c] > 0]
        # shares are from U(0.4, 0.6), so no client gets more than 1.5 times another; +-1 rounding
        assert mine.max() - 1 <= 1.5 * (mine.min() + 1)


def test_dirichlet_per_client_gives_clients_of_equal_size_and_their_own_mix():
    labels = np.repeat(np.arange(CLASSES), 300)
    spec = {"clients": 7, "alpha": 0.3, "kind": "client"}
    owner = dirichlet.divide(labels, spec, np.random.default_rng(0))
    sizes = np.bincount(owner)
    assert sizes.max() - sizes.min() <= 1
    flat = dirichlet.divide(labels, spec | {"alpha": 1000.0}, np.random.default_rng(0))
    for k in range(7):
        shares = np.bincount(labels[flat == k], minlength=CLASSES) / sizes[k]
        assert np.abs(shares - 1 / CLASSES).max() < 0.05, "a large alpha is close to IID"
    skewed = [np.bincount(labels[owner == k], minlength=CLASSES).max() for k in range(7)]
    assert np.mean(skewed) > 2 * sizes.mean() / CLASSES


def test_dirichlet_per_class_follows_the_drawn_proportions():
    labels = np.repeat(np.arange(CLASSES), 1000)
    spec = {"clients": 4, "alpha": 0.5, "kind": "class"}
    owner = dirichlet.divide(labels, spec, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    for c in range(CLASSES):
        drawn = rng.dirichlet(np.full(4, 0.5))
        rng.permutation(1000)
        found = np.bincount(owner[labels == c], minlength=4) / 1000
        assert np.abs(found - drawn).max() <= 1e-3


class Draws:
    """A generator of given proportions that notes the odds of every choice."""

    def __init__(self, *proportions):
        self.proportions, self.odds = iter(proportions), []
        self.rng = np.random.default_rng(0)

    def dirichlet(self, alpha, size=None):
        return np.array(next(self.proportions))

    def permutation(self, values):
        return self.rng.permutation(values)

    def choice(self, count, p):
        self.odds.append(p.tolist())
        return self.rng.choice(count, p=p)


def test_dirichlet_per_client_draws_by_proportions_whatever_is_left_of_a_class():
    labels = np.repeat([0, 1], [90, 10])
    draws = Draws([[0.25, 0.75], [0.75, 0.25]])
    dirichlet.divide(labels, {"clients": 2, "alpha": 1.0, "kind": "client"}, draws)
    used_up = draws.odds.index([1.0, 0.0])
    assert used_up >= 10
    assert all(odds in ([0.25, 0.75], [0.75, 0.25]) for odds in draws.odds[:used_up])


def test_a_capped_client_that_holds_its_equal_share_gets_nothing_more():
    labels = np.repeat([0, 1], 10)
    draws = Draws([1.0, 0.0], [0.5, 0.5])
    spec = {"clients": 2, "alpha": 1.0, "kind": "class_capped"}
    owner = dirichlet.divide(labels, spec, draws)
    np.testing.assert_array_equal(owner, labels)


def _held(spec, labels, seed):
    """Return the numbers of images by client and class [K, C] of an imbalance partition."""
    rng = np.random.default_rng(seed)
    owner = imbalance.divide(labels, {"dominant_share": 0.99, "dominant_classes": 0.1} | spec, rng)
    held = np.zeros((spec["clients"], labels.max() + 1), int)
    np.add.at(held, (owner, labels), 1)
    assert held.sum() == len(labels)
    assert np.ptp(held.sum(1)) <= 1, "clients of equal size"
    return held


def test_imbalance_on_cifar100():
    """A client of PFPT has 495 images of ten classes and 5 of others; all give equally many."""
    held = _held({"clients": 100}, np.repeat(np.arange(100), 500), 0)
    dominant = held > 10
    assert (dominant.sum(0) == 10).all() and (dominant.sum(1) == 10).all()
    assert ((held * dominant).sum(0) == 495).all() and ((held * dominant).sum(1) == 495).all()
    assert held[~dominant].max() == 1


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(10, 1, 10), (10, 1, 30), (10, 3, 10), (20, 2, 30), (30, 3, 10), (12, 4, 9)]),
    st.sampled_from([0.9, 0.99, 1.0]),
    st.integers(60, 200),
    st.integers(0, 1000),
)
@example((20, 2, 30), 1.0, 127, 127)  # 84 2/3 images a client
def test_dominant_shares_hold_where_classes_are_alike(sizes, share, per_class, seed):
    classes, dominant, clients = sizes  # clients x dominant is a multiple of classes
    spec = {"clients": clients, "dominant_share": share, "dominant_classes": dominant / classes}
    held = _held(spec, np.repeat(np.arange(classes), per_class), seed)
    size = held.sum(1)
    order = np.argsort(-held, 1, kind="stable")
    mine = np.take_along_axis(held, order, 1)
    # client sizes, their shares and those of the classes are each rounded
    assert (np.abs(mine[:, :dominant].sum(1) - share * size) <= 2).all()
    assert len(set(np.bincount(order[:, :dominant].ravel(), minlength=classes))) == 1
    if dominant < classes:
        even = (1 - share) * size.max() / (classes - dominant)
        # as above, two images may be left to another class
        assert mine[:, dominant:].max() <= 1.25 * np.ceil(even) + 2, "no class stands out again"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(95, 105), min_size=10, max_size=10), st.integers(0, 1000))
def test_dominant_shares_are_as_large_as_the_classes_allow(supply, seed):
    """Two clients share each class; images of it that one client does not need go to others."""
    labels = np.repeat(np.arange(10), supply)
    held = _held({"clients": 20}, labels, seed)
    largest = held.argmax(1)
    for c in range(10):
        clients = largest == c
        assert clients.sum() == 2
        due = np.floor(0.99 * held[clients].sum(1)).sum()
        assert held[clients, c].sum() >= min(supply[c], due)
        assert np.ptp(held[clients, c]) <= 2, "one of them is not served first"


def test_an_imbalance_that_classes_do_not_allow_is_refused():
    labels = np.repeat(np.arange(CLASSES), 120)
    with refused("7 clients x 1 classes", "10 classes", "dominant_classes"):
        _held({"clients": 7}, labels, 0)
    with refused("client", "of its 1 dominant classes, not 99%", "clients x 1"):
        _held({"clients": 12}, labels, 0)


def test_every_module_is_a_scheme():
    known = set(KINDS["partitions"])
    folder = ROOT / "workflow/fedloom/data/schemes"
    assert known == {path.stem for path in folder.glob("[a-z]*.py")} - {"dealing", "all_schemes"}


@given(st.integers(0, 1000), st.integers(1, 12))
def test_iid_clients_are_of_equal_size_and_alike(seed, clients):
    labels = np.repeat(np.arange(CLASSES), 300)
    owner = iid.divide(labels, {"clients": clients}, np.random.default_rng(seed))
    sizes = np.bincount(owner)
    assert len(sizes) == clients
    assert sizes.max() - sizes.min() <= 1
    for k in range(clients):
        shares = np.bincount(labels[owner == k], minlength=CLASSES) / sizes[k]
        assert np.abs(shares - 1 / CLASSES).max() < 6 * (0.1 * 0.9 / sizes[k]) ** 0.5


@given(st.integers(0, 500), st.lists(st.floats(0.01, 10), min_size=1, max_size=20))
def test_largest_remainder(total, weights):
    weights = np.array(weights)
    counts = dealing.largest_remainder(total, weights)
    assert counts.sum() == total
    assert (np.abs(counts - total * weights / weights.sum()) < 1 + 1e-9).all()


@settings(deadline=None, max_examples=20)
@given(st.integers(1, CLASSES), st.integers(0, 1000))
def test_disjoint_clients_share_no_class_and_hold_about_equally_many(clients, seed):
    table = make({"scheme": "disjoint", "clients": clients}, seed).to_pandas()
    assert (table.groupby("label")["client_id"].nunique() == 1).all()
    held = table.groupby("client_id")["label"].nunique()
    assert len(held) == clients and held.max() - held.min() <= 1


def test_more_clients_than_classes_cannot_be_disjoint():
    with refused("clients must be at most 10", "got 11"):
        make({"scheme": "disjoint", "clients": 11})
