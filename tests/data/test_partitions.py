"""Partitions: disjoint, complete, in the promised proportions, the same every time."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.common.errors import FedLoomError
from fedloom.data.partition import divide_dataset
from partitioned import CLASSES, dataset, make, with_domains
from refusals import refused

HELD_OUT = st.sampled_from([0.0, 0.1, 0.3])


def _specs(scheme, **keys):
    return st.fixed_dictionaries({"scheme": st.just(scheme), "held_out": HELD_OUT} | keys)


SPECS = st.one_of(
    _specs("pathological", clients=st.integers(5, 12), classes_per_client=st.integers(2, 6)),
    _specs(
        "dirichlet",
        kind=st.sampled_from(["client", "class"]),
        clients=st.integers(1, 6),
        alpha=st.sampled_from([1.0, 10.0]),
    ),
    _specs("disjoint", clients=st.integers(1, CLASSES)),
    _specs("iid", clients=st.integers(1, 12)),
    _specs(
        "imbalance",
        clients=st.integers(3, 20),
        dominant_share=st.sampled_from([0.5, 0.8, 0.99]),
        dominant_classes=st.sampled_from([0.1, 0.3, 0.5]),
    ),
)


@settings(deadline=None, max_examples=40)
@given(SPECS, st.integers(0, 1000))
def test_every_image_has_one_client(spec, seed):
    data = dataset(seed)
    try:
        table = make(spec, seed, data)
    except FedLoomError as error:
        refusals = "has no |is less than one|would have|without a client"
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
    again = make(spec, seed, data)
    assert again.equals(table)


def test_test_images_follow_the_training_proportions():
    labels = np.tile(np.repeat(np.arange(CLASSES), 100), 2)
    test = np.repeat([False, True], 100 * CLASSES)
    spec = {"scheme": "dirichlet", "kind": "class", "clients": 3, "alpha": 1.0}
    table = make(spec, 0, (labels, test, np.full(len(labels), "x")))
    client = table["client_id"].to_numpy()
    for c in range(CLASSES):
        counts = [
            np.bincount(client[(labels == c) & split], minlength=3) for split in (test, ~test)
        ]
        assert (counts[0] == counts[1]).all()


@settings(deadline=None, max_examples=6)
@given(st.sampled_from(["iid", "dirichlet"]), st.integers(0, 1000))
def test_test_images_are_in_proportion_to_a_clients_training_images(scheme, seed):
    """The proportions hold even if a client's share of a class is less than an image or two."""
    labels = np.repeat(np.arange(100), 48)
    test = np.tile(np.arange(48) % 4 == 0, 100)
    spec = {"scheme": scheme, "clients": 40, "alpha": 0.5, "kind": "client"}
    client = make(spec, seed, (labels, test, np.full(len(labels), "x")))["client_id"].to_numpy()
    sizes = np.bincount(client[test], minlength=40)
    expected = np.bincount(client[~test], minlength=40) / 3
    assert np.abs(sizes - expected).max() <= 6
    assert abs(sizes[:20].sum() - sizes[20:].sum()) < 60, "no client by its number"


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
    tables = [make(spec, seed, with_domains(0)) for seed in range(3)]
    assert not tables[0].equals(tables[1])
    assert not tables[1].equals(tables[2])
    # images that stay with their client do so no more often than by chance
    owners = [table["client_id"].to_numpy() for table in tables]
    clients = owners[0].max() + 1
    chance = max(np.mean(owners[0] == k) for k in range(clients))
    assert np.mean(owners[0] == owners[1]) < 3 * chance


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"scheme": "pathological", "clients": 5, "classes_per_client": 11},
            ["at most 10", "got 11"],
        ),
        (
            {"scheme": "pathological", "clients": 4, "classes_per_client": 2},
            ["4 clients x 2", "10 classes", "classes_per_client"],
        ),
        (
            {"scheme": "dirichlet", "kind": "class", "clients": 300, "alpha": 0.01},
            ["client", "no training images", "seed 0"],
        ),
        ({"scheme": "iid", "clients": 10**9}, ["1000000000 clients", "training images"]),
    ],
)
def test_a_partition_that_does_not_fit_is_refused(spec, words):
    with refused(*words):
        make(spec)


@pytest.mark.parametrize("novel", [{}, {"novel_classes": [0]}])
def test_a_class_that_has_only_test_images_is_named(novel):
    labels, test, domains = dataset(0)
    test[labels == 2] = True
    spec = {"scheme": "iid", "clients": 4, "held_out": 0.0} | novel
    names = [f"animal {k}" for k in range(CLASSES)]
    with refused("class 'animal 2'", "no training image", "keep_classes") as error:
        divide_dataset(labels, test, domains, spec, 0, names)
    assert "domain" not in str(error.value)


@pytest.mark.parametrize("scheme", [{"scheme": "disjoint"}, {"scheme": "iid"}])
def test_few_shots_are_kept_of_every_class_that_a_client_holds(scheme, tmp_path):
    data = dataset(0, 2000)
    spec = scheme | {"clients": 5, "held_out": 0.2}
    full, few = (make(spec | s, 3, data).to_pandas() for s in ({}, {"shots": 4}))
    train = few[~few["test"] & (few["client_id"] >= 0)]
    assert (train.groupby(["client_id", "label"]).size() == 4).all()
    before = full[~full["test"]].groupby(["client_id", "label"]).size()
    assert len(train.groupby(["client_id", "label"])) == len(before), "no client loses a class"
    assert full[full["test"]].equals(few[few["test"]]), "the test images stay"
    other = make(spec | {"shots": 4}, 4, data).to_pandas()
    assert not few.equals(other)


def test_more_shots_than_images_take_all_that_a_client_has_and_say_so(caplog):
    """There are 3 training images of class 0, 9 of class 1 and 20 of class 2."""
    labels = np.repeat([0, 1, 2], [6, 12, 23])
    test = np.concatenate([np.arange(n) < 3 for n in (6, 12, 23)])
    spec = {"scheme": "disjoint", "clients": 2}
    full = make(spec, 1, (labels, test, np.full(41, "x"))).to_pandas()
    few = make(spec | {"shots": 7}, 1, (labels, test, np.full(41, "x"))).to_pandas()
    left = few[~few["test"] & (few["client_id"] >= 0)]
    assert left.groupby("label").size().to_dict() == {0: 3, 1: 7, 2: 7}
    assert (full.loc[left.index, "client_id"] == left["client_id"]).all(), "no image moves"
    assert full[full["test"]].equals(few[few["test"]]), "the test images stay"
    line = "shots is 7, but clients hold fewer training images of a class 1 times out of 3"
    assert line in caplog.text


def test_the_log_says_nothing_where_there_are_shots_enough(caplog):
    make({"scheme": "disjoint", "clients": 5, "shots": 2})
    assert not caplog.text
