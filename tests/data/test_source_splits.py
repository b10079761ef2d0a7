"""The test split that is drawn where a dataset has none, and classes that domains share."""

import hashlib
import logging

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedloom.data.partition import divide_dataset
from fedloom.data.splits import fixed_test_split
from images_on_disk import build, image_folder
from refusals import refused


def _random(seed, count, classes=4, domains=3):
    rng = np.random.default_rng(seed)
    names = [f"d{k}" for k in range(domains)]
    return rng.integers(0, classes, count), rng.choice(names, count)


def _counts(groups, test):
    """Return the numbers of images and of test images of every group."""
    names, number = np.unique(groups, return_inverse=True)
    return np.bincount(number), np.bincount(number, test, minlength=len(names)).astype(int)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=12), st.floats(0.01, 0.95), st.integers(1, 3)
)
@example([2, 1, 1, 1], 0.2, 1)
@example([1, 1], 0.2, 1)
def test_classes_give_their_share_and_what_others_cannot(sizes, fraction, domains):
    """The whole set gives its share, or as much as its classes can give."""
    sizes = np.array(sizes)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    names = np.array([f"d{k % domains}" for k in range(len(labels))])
    if sizes.max() == 1:
        with refused("one image"):
            fixed_test_split(labels, names, fraction)
        return
    test, rule = fixed_test_split(labels, names, fraction)
    assert (test == fixed_test_split(labels, names, fraction)[0]).all()
    taken = np.bincount(labels, test)
    assert (taken < sizes).all() and taken.sum() >= 1
    assert (np.abs(taken - fraction * sizes) <= 1 + 1e-9).all()
    most = np.minimum(sizes - 1, np.ceil(fraction * sizes))
    if rule.startswith(f"{fraction:.6g} of every class and") or "all images" in rule:
        asked = max(1, np.floor(fraction * len(labels) + 0.5))
        assert taken.sum() >= min(asked, most.sum())


def test_four_classes_of_which_one_has_two_images():
    test, rule = fixed_test_split(np.array([0, 0, 1, 2, 3]), np.full(5, "x"), 0.2)
    assert test.sum() == 1 and test[:2].any()
    assert rule == "0.2 of all images, but not of every class, where there are too few images"


@given(st.integers(0, 1000), st.floats(0.1, 0.5))
def test_with_enough_images_every_class_in_every_domain_has_its_share(seed, fraction):
    labels, domains = _random(seed, 600)
    test, rule = fixed_test_split(labels, domains, fraction)
    sizes, taken = _counts(np.char.add(labels.astype(str), domains), test)
    assert (np.abs(taken - fraction * sizes) < 1 + 1e-9).all()
    assert rule.endswith(" of every class in every domain")
    assert float(rule.split()[0]) == pytest.approx(fraction, rel=1e-5)


def test_splits_that_were_sound_stay_as_they_were():
    """Results depend on splits. The digests are those of the first version's splits."""
    tall = np.repeat(np.arange(100), 48), np.tile(np.repeat(list("abcd"), 12), 100)
    few = np.repeat(np.arange(7), 3), np.full(21, "x")
    for (labels, domains), fraction, known in (
        (tall, 0.25, "68b1aa75af5f8d07"),
        (_random(0, 500), 0.3, "588298bd8cb4d30d"),
        (few, 0.3, "d5d151b497a217a9"),
    ):
        test, _ = fixed_test_split(labels, domains, fraction)
        assert hashlib.sha256(test.tobytes()).hexdigest()[:16] == known


def test_writers_who_wrote_every_letter_once():
    """20 writers wrote each of 136 classes once, so no class in a domain can be divided."""
    labels = np.repeat(np.arange(136), 20)
    writers = np.tile([f"writer{k:02}" for k in range(20)], 136)
    test, rule = fixed_test_split(labels, writers, 0.3)
    assert test.sum() == 816
    assert (_counts(labels, test)[1] == 6).all(), "0.3 of the 20 images of every class"
    assert set(_counts(writers, test)[1]) == {40, 41}, "0.3 of the 136 images of every writer"
    assert rule == (
        "0.3 of every class and 0.3 of every domain, but not of every class in every domain, where "
        "there are too few images"
    )


def test_a_cell_gives_its_only_image_just_where_the_others_give_too_few():
    """Two writers wrote each letter five times, ten others once each."""
    labels = np.repeat(np.arange(30), 20)
    writers = np.tile(["a"] * 5 + ["b"] * 5 + list("cdefghijkl"), 30)
    test, _ = fixed_test_split(labels, writers, 0.3)
    sizes, taken = _counts(np.char.add(labels.astype(str), writers), test)
    assert (taken[sizes == 5] == 2).all(), "1.5 each, rounded up before any only image is taken"
    assert (_counts(labels, test)[1] == 6).all()


def test_a_domain_of_many_images_is_not_left_without_test_images():
    """With three images of a class in each of four domains, every fourth image misses a domain."""
    labels = np.repeat(np.arange(20), 12)
    domains = np.tile(np.repeat(list("abcd"), 3), 20)
    test, _ = fixed_test_split(labels, domains, 0.25)
    assert (_counts(domains, test)[1] == 15).all()
    assert (_counts(labels, test)[1] == 3).all()


def test_classes_of_one_image_leave_none_to_test_on(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee", "cow"], count=1)
    with refused("3 classes", "one image"):
        build(tmp_path, source="folder", root=str(root))
    assert not (tmp_path / "images.arrow").exists()
    assert not (tmp_path / "images.json").exists()


def test_a_data_set_to_test_on_alone(tmp_path):
    """All images are test images, so no partition can divide the data set."""
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    store, about = build(tmp_path, source="folder", root=str(root), test_fraction=1)
    assert (about["test_images"], about["test_split"]) == (8, "all images")
    with refused("2 clients", "0 training images"):
        divide_dataset(store.labels, store.test, store.domains, {"scheme": "iid", "clients": 2}, 0)


def test_a_test_folder_of_which_no_image_can_be_read(tmp_path):
    root = image_folder(tmp_path / "root", ["train", "test"], ["ant", "bee"])
    for file in (root / "test").rglob("*.png"):
        file.write_bytes(b"")
    with refused("8 images", "8 unreadable", "test image"):
        build(tmp_path, source="folder", root=str(root), skip_unreadable=True)
    assert not list(tmp_path.glob("*images*")), "nothing half-written"


def test_what_was_done_is_in_the_log_and_in_the_receipt(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    root = image_folder(tmp_path / "root", ["w1", "w2", "w3", "w4"], ["ant", "bee"], count=1)
    store, about = build(tmp_path, source="folder", root=str(root), domains=True, test_fraction=0.5)
    assert about["test_split"].startswith("0.5 of every class and 0.5 of every domain, but not")
    assert about["test_images"] == store.test.sum() == 4
    assert f"4 of 8 are test images: {about['test_split']}" in caplog.text
    root = image_folder(tmp_path / "halves", ["train", "test"], ["ant", "bee"])
    _, about = build(tmp_path, source="folder", root=str(root))
    assert (about["test_split"], about["test_images"]) == ("official", 8)
    assert "8 of 16 are test images: official" in caplog.text


def test_classes_of_one_name_in_two_domains_are_one_class(tmp_path):
    root = image_folder(tmp_path / "root", ["Greek", "Latin"], ["letter1", "letter2"])
    image_folder(root / "Greek", ["letter3"])
    _, about = build(tmp_path, source="folder", root=str(root), domains=True)
    assert about["classes"] == ["letter1", "letter2", "letter3"]
