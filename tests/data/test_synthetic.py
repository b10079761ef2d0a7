"""Made-up images: the source `synthetic`."""

import numpy as np
import pytest

from fedloom.common.ids import NO_DOMAIN
from fedloom.config.kinds import check_entry
from fedloom.data import sources
from refusals import refused

CLASSES = ["cat", "dog", "owl"]


def read(**keys: object):
    """Return the images of an entry of `datasets`, after its keys were checked."""
    entry = {"source": "synthetic", "classes": CLASSES, "train": 2, "test": 1, **keys}
    return sources.read("synthetic", check_entry("datasets", "mine", entry).values.plain)


def pixels(images) -> np.ndarray:
    """Return all images as an array, float64 [N, side, side, 3]."""
    return np.stack([np.asarray(item.load(), float) for item in images.items()])


def test_every_class_has_its_images_in_every_domain():
    images = read(domains=["day", "night"])
    assert images.classes == CLASSES
    for label in range(3):
        for domain in ("day", "night"):
            cell = (images.labels == label) & (images.domains == domain)
            assert (cell & ~images.test).sum() == 2
            assert (cell & images.test).sum() == 1


def test_domains_may_have_some_of_the_classes_in_turn():
    images = read(domains=["a", "b", "c"], classes_per_domain=1)
    pairs = {*zip(images.domains.tolist(), images.labels.tolist(), strict=True)}
    assert pairs == {("a", 0), ("b", 1), ("c", 2)}

    with refused("datasets.mine", "classes_per_domain", "got 4"):
        read(domains=["a", "b"], classes_per_domain=4)
    with refused("datasets.mine", "classes_per_domain", "got 1"):
        read(domains=["a", "b"], classes_per_domain=1)


def test_test_images_may_be_without_a_domain():
    images = read(domains=["a", "b"], test_domains=False)
    assert {*images.domains[images.test]} == {NO_DOMAIN}
    assert {*images.domains[~images.test]} == {"a", "b"}


def test_without_training_images_all_are_test_images():
    assert read(train=0).test.all()


def test_images_are_the_same_each_time_and_have_the_side_that_is_asked_for():
    first = pixels(read(side=16))
    assert first.shape == (9, 16, 16, 3)
    np.testing.assert_array_equal(first, pixels(read(side=16)))


@pytest.mark.parametrize("domains", [None, ["a", "b"]])
def test_a_class_is_told_by_the_strength_of_its_waves(domains):
    """The spectra of two images of one class are more alike than those of two classes."""
    keys = {} if domains is None else {"domains": domains}
    images = read(train=6, **keys)
    grey = pixels(images).mean(-1)
    grey -= grey.mean((1, 2), keepdims=True)
    spectra = np.abs(np.fft.fft2(grey)).reshape(len(grey), -1)
    spectra /= np.linalg.norm(spectra, axis=1, keepdims=True)
    alike = spectra @ spectra.T
    same = images.labels[:, None] == images.labels[None, :]
    np.fill_diagonal(alike, np.nan)
    assert np.nanmin(alike[same]) > np.nanmax(alike[~same])
