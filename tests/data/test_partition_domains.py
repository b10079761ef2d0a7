"""Partitions of a data set with domains: a client is of one of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.config.kinds import check_entry
from partitioned import DOMAINS, make, with_domains
from refusals import refused

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
    data = labels, test, domains = with_domains(seed)
    table = make({"scheme": "domain"} | spec, seed, data)
    assert table.equals(make({"scheme": "domain"} | spec, seed, data)), "the same every time"
    each = spec["clients_per_domain"]
    client = table["client_id"].to_numpy()
    assert table["index"].to_pylist() == list(range(len(labels))), "disjoint and complete"
    assert set(client) == set(range(each * len(DOMAINS)))
    assert (domains == np.array(DOMAINS)[client // each]).all()
    sizes = np.bincount(client[~test]).reshape(len(DOMAINS), each)
    assert "alpha" in spec or (np.ptp(sizes, axis=1) <= 1).all(), "evenly"
    for k in set(client):
        own = client == k
        for c in set(labels[own & test]):  # a client's share of test images
            here = (labels == c) & (domains == DOMAINS[k // each])
            part = (own & here & ~test).sum() / (here & ~test).sum()
            assert abs((own & here & test).sum() - part * (here & test).sum()) < 1 + 1e-9
    out = set(client[~table["participating"].to_numpy()])
    if spec.get("held_out_per_domain"):
        assert sorted(k // each for k in out) == [0, 1, 2]
    else:
        assert len(out) == round(len(set(client)) * spec.get("held_out", 0))


def test_imbalance_within_domains():
    """PFPT's 4-dataset gives 99% of a class to its own clients, the rest to all of the domain."""
    sizes = [400] * 10 + [320] + [430] * 6  # two data sets; one class of the second is rarer
    labels = np.repeat(np.arange(17), sizes)
    domains = np.repeat(["ink", "oil"], [4000, 2900])
    test = np.arange(len(labels)) % 10 == 0
    spec = {"clients_per_domain": 20, "dominant_share": 0.99, "dominant_classes": 0.1}
    for seed in range(5):
        table = make({"scheme": "domain"} | spec, seed, (labels, test, domains))
        client = table["client_id"].to_numpy()[~test]
        held = np.stack([np.bincount(labels[~test][client == k], minlength=17) for k in range(40)])
        assert (held[:20, 10:] == 0).all() and (held[20:, :10] == 0).all()
        assert np.bincount(held.argmax(1), minlength=17).tolist()[:10] == [2] * 10
        assert set(np.bincount(held.argmax(1), minlength=17)[10:]) == {2, 3}, (
            "20 clients, 7 classes"
        )
        pooled = held.sum(1) - held.max(1)
        assert (pooled <= 3).all() and 40 <= pooled.sum() <= 0.011 * held.sum()


def test_test_images_of_no_domain_go_to_clients_that_hold_their_class():
    """The official test images of federated iNaturalist have no users, and so no domains."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(30), 20)
    labels = (users + rng.integers(0, 3, 600)) % 10  # three classes each
    domains = np.array([f"user{user:02}" for user in users])
    data = (
        np.r_[labels, np.repeat(np.arange(10), 40)],
        np.repeat([False, True], [600, 400]),
        np.r_[domains, np.full(400, "")],
    )
    table = make({"scheme": "domain", "clients_per_domain": 1}, 0, data)
    client = table["client_id"].to_numpy()
    test = data[1]
    assert (client[~test] == users).all()
    sizes = np.bincount(client[test])
    assert len(sizes) == 30 and sizes.sum() == 400
    assert sizes.max() - sizes.min() <= 4, "in proportion to their training images"
    with refused("1 training images", "no domain"):
        data[2][5] = ""
        make({"scheme": "domain", "clients_per_domain": 1}, 0, data)


def test_keys_of_imbalance_go_together():
    entry = {"scheme": "domain", "dominant_share": 0.9}
    with refused("mine", "dominant_classes"):
        check_entry("partitions", "mine", entry)
    entry |= {"dominant_classes": 0.1, "alpha": 1.0, "kind": "class"}
    with refused("mine", "alpha", "dominant_share"):
        check_entry("partitions", "mine", entry)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y, test, d: (y, test, np.full(len(y), "ink")), ["'ink'"]),
        (lambda y, test, d: (y, test | ((d == "oil") & (y == 3)), d), ["class 3", "'oil'"]),
        (lambda y, test, d: (y, test & (d != "wax"), d), ["client 4", "'wax'", "2 such clients"]),
        (lambda y, test, d: (y, test & False, d), ["client 0", "'ink'", "6 such clients of 6"]),
    ],
)
def test_domains_that_do_not_fit_are_refused(change, words):
    with refused(*words):
        make({"scheme": "domain", "clients_per_domain": 2}, 0, change(*with_domains(0)))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"alpha": 1.0, "kind": "client"},
        {"alpha": 1.0, "kind": "class_capped", "min_images": 5},
        {"dominant_share": 0.9, "dominant_classes": 0.5},
    ],
)
def test_a_domain_without_training_images_is_refused(more):
    labels, test, domains = with_domains(0)
    keep = (domains != "oil") | test
    spec = {"scheme": "domain", "clients_per_domain": 2} | more
    with refused("domain 'oil'", "0 training images"):
        make(spec, 0, (labels[keep], test[keep], domains[keep]))
