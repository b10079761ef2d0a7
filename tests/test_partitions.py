"""Partitions: disjoint, complete, in the promised proportions, the same every time."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import schema
from fedloom.data import federation, partitions, schemes, sources, store
from fedloom.errors import FedLoomError

CLASSES = 10


def _dataset(seed, count=600):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    labels[: 4 * CLASSES] = np.repeat(np.arange(CLASSES), 4)
    test = rng.random(count) < 0.3
    test[: 4 * CLASSES] = np.tile([False, False, True, True], CLASSES)
    return labels, test, np.full(count, "x")


def _make(spec, seed=0, data=None):
    labels, test, domains = data or _dataset(0)
    table = partitions.partition(labels, test, domains, {"held_out": 0.0} | spec, seed)
    partitions.check_labels(table)
    return table


SPECS = st.one_of(
    st.fixed_dictionaries(
        {
            "scheme": st.just("pathological"),
            "clients": st.integers(5, 12),
            "classes_per_client": st.integers(2, 6),
            "held_out": st.sampled_from([0.0, 0.1, 0.3]),
        }
    ),
    st.fixed_dictionaries(
        {
            "scheme": st.just("dirichlet"),
            "kind": st.sampled_from(["client", "class"]),
            "clients": st.integers(1, 6),
            "alpha": st.sampled_from([1.0, 10.0]),
            "held_out": st.sampled_from([0.0, 0.3]),
        }
    ),
    st.fixed_dictionaries(
        {
            "scheme": st.just("iid"),
            "clients": st.integers(1, 12),
            "held_out": st.sampled_from([0.0, 0.1, 0.3]),
        }
    ),
    st.fixed_dictionaries(
        {
            "scheme": st.just("imbalance"),
            "clients": st.integers(3, 20),
            "dominant_share": st.sampled_from([0.5, 0.8, 0.99]),
            "dominant_classes": st.sampled_from([0.1, 0.3, 0.5]),
            "held_out": st.sampled_from([0.0, 0.1, 0.3]),
        }
    ),
)


@settings(deadline=None, max_examples=40)
@given(SPECS, st.integers(0, 1000))
def test_every_image_has_one_client(spec, seed):
    data = _dataset(seed)
    try:
        table = _make(spec, seed, data)
    except FedLoomError as error:
        refusals = "has no |is none|would have|without a client"
        assert re.search(refusals, str(error))  # refused, never written
        return
    assert table["index"].to_numpy().tolist() == list(range(len(data[0])))
    client = table["client_id"].to_numpy()
    assert set(client) == set(range(spec["clients"]))
    assert (table["label"].to_numpy() == data[0]).all()
    participating = table["participating"].to_numpy()
    out = {int(k) for k in client[~participating]}
    assert len(out) == round(spec["clients"] * spec["held_out"])
    assert not out & {int(k) for k in client[participating]}
    again = _make(spec, seed, data)
    assert again.equals(table)


@settings(deadline=None, max_examples=25)
@given(st.integers(5, 20), st.integers(2, CLASSES), st.integers(0, 1000))
def test_pathological_clients_hold_their_number_of_classes(clients, each, seed):
    labels = np.repeat(np.arange(CLASSES), 200)
    spec = {"clients": clients, "classes_per_client": each}
    owner = schemes.pathological(labels, spec, np.random.default_rng(seed))
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
    owner = schemes.dirichlet(labels, spec, np.random.default_rng(0))
    sizes = np.bincount(owner)
    assert sizes.max() - sizes.min() <= 1
    flat = schemes.dirichlet(labels, spec | {"alpha": 1000.0}, np.random.default_rng(0))
    for k in range(7):
        shares = np.bincount(labels[flat == k], minlength=CLASSES) / sizes[k]
        assert np.abs(shares - 1 / CLASSES).max() < 0.05, "a large alpha is close to IID"
    skewed = [np.bincount(labels[owner == k], minlength=CLASSES).max() for k in range(7)]
    assert np.mean(skewed) > 2 * sizes.mean() / CLASSES


def test_dirichlet_per_class_follows_the_drawn_proportions():
    labels = np.repeat(np.arange(CLASSES), 1000)
    spec = {"clients": 4, "alpha": 0.5, "kind": "class"}
    owner = schemes.dirichlet(labels, spec, np.random.default_rng(3))
    rng = np.random.default_rng(3)
    for c in range(CLASSES):
        drawn = rng.dirichlet(np.full(4, 0.5))
        rng.permutation(1000)
        found = np.bincount(owner[labels == c], minlength=4) / 1000
        assert np.abs(found - drawn).max() <= 1e-3


def test_test_images_follow_the_training_proportions():
    labels = np.tile(np.repeat(np.arange(CLASSES), 100), 2)
    test = np.repeat([False, True], 100 * CLASSES)
    spec = {"scheme": "dirichlet", "kind": "class", "clients": 3, "alpha": 1.0}
    table = _make(spec, 0, (labels, test, np.full(len(labels), "x")))
    client = table["client_id"].to_numpy()
    for c in range(CLASSES):
        counts = [
            np.bincount(client[(labels == c) & split], minlength=3) for split in (test, ~test)
        ]
        assert (counts[0] == counts[1]).all()


def _held(spec, labels, seed):
    """Images by client and class [K, C] of an imbalance partition."""
    rng = np.random.default_rng(seed)
    owner = schemes.imbalance(labels, {"dominant_share": 0.99, "dominant_classes": 0.1} | spec, rng)
    held = np.zeros((spec["clients"], labels.max() + 1), int)
    np.add.at(held, (owner, labels), 1)
    assert held.sum() == len(labels)
    assert np.ptp(held.sum(1)) <= 1, "clients of equal size"
    return held


def test_imbalance_on_cifar100():
    """PFPT's: of 500 images, 495 are of ten classes and 5 of others; each class gives alike."""
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
        assert mine[:, dominant:].max() <= 1.25 * np.ceil(even) + 1, "no class stands out again"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(95, 105), min_size=10, max_size=10), st.integers(0, 1000))
def test_dominant_shares_are_as_large_as_the_classes_allow(supply, seed):
    """A class has two clients, which share it; what one client does not need, others get."""
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
    for clients, line in (
        (7, "7 clients x 1 classes leave some of the 10 classes without a client; raise clients or "
            "dominant_classes"),
        (12, r"client \d+ would have \d\d% of its images of its 1 dominant classes, not 99%; take "
             "classes of about equal size, and so many clients that clients x 1 is a multiple of "
             "the 10 classes"),
    ):  # fmt: skip
        with pytest.raises(FedLoomError, match=line):
            _held({"clients": clients}, labels, 0)


def test_every_scheme_of_the_schema_is_there():
    known = set(schema.load("config")["$defs"]["partition"])
    assert known == set(schemes.SCHEMES) | {"domain"}


@given(st.integers(0, 1000), st.integers(1, 12))
def test_iid_clients_are_of_equal_size_and_alike(seed, clients):
    labels = np.repeat(np.arange(CLASSES), 300)
    owner = schemes.iid(labels, {"clients": clients}, np.random.default_rng(seed))
    sizes = np.bincount(owner)
    assert len(sizes) == clients
    assert sizes.max() - sizes.min() <= 1
    for k in range(clients):
        shares = np.bincount(labels[owner == k], minlength=CLASSES) / sizes[k]
        assert np.abs(shares - 1 / CLASSES).max() < 6 * (0.1 * 0.9 / sizes[k]) ** 0.5


DOMAINS = ["ink", "oil", "wax"]


def _domains(seed, count=900):
    """Three domains of different size, in which every class has training and test images."""
    labels, test, _ = _dataset(seed, count)
    rng = np.random.default_rng(seed)
    domains = rng.choice(DOMAINS, count, p=[0.2, 0.3, 0.5])
    cells = 4 * CLASSES * len(DOMAINS)
    labels[:cells] = np.tile(np.repeat(np.arange(CLASSES), 4), len(DOMAINS))
    domains[:cells] = np.repeat(DOMAINS, 4 * CLASSES)
    test[:cells] = np.tile([False, False, True, True], cells // 4)
    return labels, test, domains


BY_DOMAIN = st.one_of(
    st.just({"clients_per_domain": 1}),
    st.fixed_dictionaries(
        {
            "clients_per_domain": st.integers(2, 4),
            "held_out_per_domain": st.sampled_from([0, 1]),
        }
    ),
    st.fixed_dictionaries(
        {
            "clients_per_domain": st.integers(2, 3),
            "alpha": st.sampled_from([1.0, 10.0]),
            "kind": st.sampled_from(["client", "class"]),
            "held_out": st.sampled_from([0.0, 0.34]),
        }
    ),
)


@settings(deadline=None, max_examples=30)
@given(BY_DOMAIN, st.integers(0, 3))
def test_a_client_of_a_domain_sees_it_alone_and_shares_its_test_split(spec, seed):
    data = labels, test, domains = _domains(seed)
    table = _make({"scheme": "domain"} | spec, seed, data)
    assert table.equals(_make({"scheme": "domain"} | spec, seed, data)), "the same every time"
    each = spec["clients_per_domain"]
    client = table["client_id"].to_numpy()
    assert table["index"].to_pylist() == list(range(len(labels))), "disjoint and complete"
    assert set(client) == set(range(each * len(DOMAINS)))
    assert (domains == np.array(DOMAINS)[client // each]).all()
    for k in set(client):
        own = client == k
        for c in set(labels[own & test]):  # its part of the domain's test images of a class
            here = (labels == c) & (domains == DOMAINS[k // each])
            part = (own & here & ~test).sum() / (here & ~test).sum()
            assert abs((own & here & test).sum() - part * (here & test).sum()) < 1 + 1e-9
    out = set(client[~table["participating"].to_numpy()])
    if spec.get("held_out_per_domain"):
        assert sorted(k // each for k in out) == [0, 1, 2]
    else:
        assert len(out) == round(len(set(client)) * spec.get("held_out", 0))


def test_domains_without_alpha_are_divided_evenly():
    data = _domains(0)
    table = _make({"scheme": "domain", "clients_per_domain": 4}, 0, data)
    train = table["client_id"].to_numpy()[~data[1]]
    sizes = np.bincount(train).reshape(3, 4)
    assert (sizes.max(1) - sizes.min(1) <= 1).all()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda label, test, d: (label, test, np.full(len(label), "ink")),
            r"one domain \('ink'\); use another",
        ),
        (
            lambda label, test, d: (label, test | ((d == "oil") & (label == 3)), d),
            "class 3 has test images but no training image of domain 'oil'",
        ),
        (
            lambda label, test, d: (label, test & (d != "wax"), d),
            r"client 4 of domain 'wax' has no test images \(seed 0, 2 such clients\)",
        ),
    ],
)
def test_domains_that_do_not_fit_are_refused(change, line):
    with pytest.raises(FedLoomError, match=line):
        _make({"scheme": "domain", "clients_per_domain": 2}, 0, change(*_domains(0)))


@pytest.mark.parametrize(
    "more", [{}, {"alpha": 1.0, "kind": "client"}, {"alpha": 1.0, "kind": "class"}]
)
def test_a_domain_without_training_images_is_refused(more):
    labels, test, domains = _domains(0)
    keep = (domains != "oil") | test
    spec = {"scheme": "domain", "clients_per_domain": 2} | more
    with pytest.raises(FedLoomError, match="no training image of domain 'oil'"):
        _make(spec, 0, (labels[keep], test[keep], domains[keep]))


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["iid", "dirichlet"]), st.integers(0, 1000))
def test_test_images_are_in_proportion_to_a_clients_training_images(scheme, seed):
    """Also where every client's share of every class is less than an image or two."""
    labels = np.repeat(np.arange(100), 48)
    test = np.tile(np.arange(48) % 4 == 0, 100)
    spec = {"scheme": scheme, "clients": 40, "alpha": 0.5, "kind": "client"}
    client = _make(spec, seed, (labels, test, np.full(len(labels), "x")))["client_id"].to_numpy()
    sizes = np.bincount(client[test], minlength=40)
    expected = np.bincount(client[~test], minlength=40) / 3
    assert np.abs(sizes - expected).max() <= 6
    assert abs(sizes[:20].sum() - sizes[20:].sum()) < 60, "no client by its number"


@given(st.integers(0, 500), st.lists(st.floats(0.01, 10), min_size=1, max_size=20))
def test_largest_remainder(total, shares):
    shares = np.array(shares)
    counts = schemes.largest_remainder(total, shares)
    assert counts.sum() == total
    assert (np.abs(counts - total * shares / shares.sum()) < 1 + 1e-9).all()


@pytest.mark.parametrize(
    "spec",
    [
        {"scheme": "pathological", "clients": 10, "classes_per_client": 2, "held_out": 0.2},
        {"scheme": "iid", "clients": 10, "held_out": 0.2},
        {
            "scheme": "imbalance",
            "clients": 10,
            "dominant_share": 0.9,
            "dominant_classes": 0.3,
            "held_out": 0.2,
        },
        {"scheme": "domain", "clients_per_domain": 3, "held_out_per_domain": 1},
    ],
)
def test_seeds_are_independent_of_each_other(spec):
    tables = [_make(spec, seed, _domains(0)) for seed in range(3)]
    assert not tables[0].equals(tables[1])
    assert not tables[1].equals(tables[2])
    # images that stay with their client do so no more often than by chance
    owners = [table["client_id"].to_numpy() for table in tables]
    clients = owners[0].max() + 1
    chance = max(np.mean(owners[0] == k) for k in range(clients))
    assert np.mean(owners[0] == owners[1]) < 3 * chance


@pytest.mark.parametrize(
    "spec",
    [
        {"scheme": "dirichlet", "kind": "client", "clients": 5, "alpha": 1.0},
        {"scheme": "imbalance", "clients": 5, "dominant_share": 0.9, "dominant_classes": 0.4},
    ],
)
def test_the_file_is_the_same_every_time(spec, tmp_path):
    for name in ("a", "b"):
        partitions.write(tmp_path / name, _make(spec))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert pq.read_table(tmp_path / "a").schema.equals(partitions.COLUMNS)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            {"scheme": "pathological", "clients": 5, "classes_per_client": 11},
            "classes_per_client is 11, but the dataset has 10 classes",
        ),
        (
            {"scheme": "pathological", "clients": 4, "classes_per_client": 2},
            "4 clients x 2 classes leave some of the 10 classes without a client",
        ),
        (
            {"scheme": "dirichlet", "kind": "class", "clients": 300, "alpha": 0.01},
            r"client \d+ has no training images \(seed 0",
        ),
    ],
)
def test_a_partition_that_does_not_fit_is_refused(spec, line):
    with pytest.raises(FedLoomError, match=line):
        _make(spec)


def test_a_client_tested_on_a_class_it_lacks_is_refused():
    columns = [[0, 1, 2], [0, 0, 0], [4, 4, 5], [False, True, True], [True] * 3, ["x"] * 3]
    arrays = [pa.array(c, t) for c, t in zip(columns, partitions.COLUMNS.types, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=partitions.COLUMNS)
    with pytest.raises(FedLoomError, match="client 0 is tested on class 5"):
        partitions.check_labels(table)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    spec = {"source": "sklearn_digits", "test_fraction": 0.3}
    sources.build(spec, folder / "images.arrow", folder / "about.json")
    return folder


def test_digits_are_stored_as_they_ship(digits):
    from sklearn.datasets import load_digits

    images = store.ImageStore(digits / "images.arrow")
    shipped = load_digits()
    assert len(images) == 1797
    assert (images.labels == shipped.target).all()
    chosen = np.array([[5, 1500], [1030, 0]])  # across the file's batches
    expected = np.round(shipped.images[chosen] * 255 / 16)[..., None]
    assert (images.images(chosen) == expected).all()
    assert images.test.sum() == 540
    for c in range(10):
        share = images.test[images.labels == c].mean()
        assert abs(share - 0.3) < 0.01, "the split is stratified"


def test_a_truncated_store_is_named(digits, tmp_path):
    path = tmp_path / "images.arrow"
    path.write_bytes((digits / "images.arrow").read_bytes()[:5000])
    with pytest.raises(FedLoomError, match=r"images.arrow: not a whole Arrow file"):
        store.ImageStore(path)


def test_a_federation_hands_out_each_clients_own_images(digits, tmp_path):
    import torch

    images = store.ImageStore(digits / "images.arrow")
    spec = {"scheme": "pathological", "clients": 20, "classes_per_client": 2, "held_out": 0.1}
    table = partitions.partition(images.labels, images.test, images.domains, spec, 0)
    partitions.write(tmp_path / "p.parquet", table)
    data = federation.load(images, tmp_path / "p.parquet", 10, torch.device("cpu"))
    assert len(data.participating) == 18
    assert sum(map(len, data.train)) + sum(map(len, data.test)) == 1797
    torch.testing.assert_close(data.priors.sum(1), torch.ones(20))
    assert ((data.priors > 0).sum(1) == 2).all()
    batch = data.batch([data.train[3][:2], data.train[4][:5]])
    assert batch.mask.tolist() == [[True] * 2 + [False] * 3, [True] * 5]
    assert batch.images.shape == (2, 5, 8, 8, 1)
    assert batch.labels[1].tolist() == images.labels[data.train[4][:5]].tolist()


@pytest.mark.parametrize(
    "spec",
    [
        {"scheme": "domain", "clients_per_domain": 2, "held_out_per_domain": 1},
        {"scheme": "imbalance", "clients": 5, "dominant_share": 0.9, "dominant_classes": 0.4},
    ],
)
def test_the_chart_is_the_same_every_time(spec, tmp_path):
    from fedloom.report import partition_chart

    partitions.write(tmp_path / "p.parquet", _make(spec, 0, _domains(0)))
    names = [f"class {c}" for c in range(CLASSES)]
    for name in ("a", "b"):
        out = (tmp_path / f"{name}.png", tmp_path / f"{name}.pdf")
        partition_chart.draw(tmp_path / "p.parquet", names, *out)
    for kind in ("png", "pdf"):
        first, second = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("a", "b"))
        assert first == second


def test_the_chart_shows_every_count_and_names_the_domains():
    from fedloom.report import partition_chart

    counts = np.array([[9, 0, 4], [1, 3, 0], [0, 5, 5]])
    out = np.array([False, True, False])
    figure = partition_chart._figure(counts, out, ["ink", "ink", "oil"], ["x", "y", "z"])
    axes = figure.axes[0]
    shown = {
        (int(x), int(y)) for dots in axes.collections for x, y in np.asarray(dots.get_offsets())
    }
    assert shown == set(zip(*np.nonzero(counts), strict=True))
    filled = axes.collections[0].get_sizes()
    np.testing.assert_allclose(filled / filled[0], [1, 4 / 9, 5 / 9, 5 / 9])
    assert [text.get_text() for text in axes.texts] == ["ink", "oil"]
    assert "held out" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_cohort_larger_than_a_partition_by_domains_is_refused(tiny):
    from dataclasses import replace

    from fedloom.engine import setup

    task, _ = tiny("head_tuning")
    setup.check_cohort(task)
    with pytest.raises(
        FedLoomError, match=r"study.clients_per_round: 99 is more than the \d+ part"
    ):
        setup.check_cohort(replace(task, clients_per_round=99))
