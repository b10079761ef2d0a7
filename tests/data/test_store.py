"""The store of images, and what a federation hands out of it."""

import numpy as np
import pytest

from fedloom.common.files import write_table
from fedloom.common.receipts import read_receipt
from fedloom.data import loading, sources, store
from fedloom.data.partition import divide_dataset


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    sources.build_store("sklearn_digits", {"test_fraction": 0.3}, folder / "images.arrow")
    return folder


def test_digits_are_stored_as_they_ship(digits):
    from sklearn.datasets import load_digits

    images = store.ImageStore(digits / "images.arrow")
    shipped = load_digits()
    assert len(images) == 1797
    assert (images.labels == shipped.target).all()
    chosen = np.array([[5, 1500], [1030, 0]])  # rows of several batches of the file
    expected = np.round(shipped.images[chosen] * 255 / 16)[..., None]
    assert (images.images(chosen) == expected).all()
    assert images.test.sum() == 540
    for c in range(10):
        share = images.test[images.labels == c].mean()
        assert abs(share - 0.3) < 0.01, "the split is stratified"


def test_the_receipt_says_how_images_were_prepared(digits, tmp_path):
    """A model that is loaded later prepares new images in the same way."""
    assert read_receipt(digits / "images.arrow")["preparation"] == {}
    keys = {"image_size": 16, "resize": "squash", "transparency": "white", "grey_bits": 12}
    path = tmp_path / "images.arrow"
    sources.build_store("sklearn_digits", {"test_fraction": 0.3, **keys}, path)
    del keys["image_size"]
    assert read_receipt(path)["preparation"] == keys


def test_images_are_read_across_chunks_in_any_order(tmp_path, monkeypatch):
    everything = np.random.default_rng(1).integers(0, 256, (40, 10, 12, 3), np.uint8)
    examples = [store.Example(image, 0, k < 7, "noise") for k, image in enumerate(everything)]
    path = tmp_path / "images.arrow"
    monkeypatch.setattr(store, "MAX_CHUNK_IMAGES", 7)
    store.write_images(path, examples, (10, 12, 3), ["ant"], "noise")
    images = store.ImageStore(path)
    index = np.random.default_rng(0).integers(0, 40, (3, 5, 2))
    assert (images.images(index) == everything[index]).all()
    assert images.images(np.empty((2, 0), np.int64)).shape == (2, 0, 10, 12, 3)


def test_a_federation_hands_out_each_clients_own_images(digits, tmp_path):
    import torch

    images = store.ImageStore(digits / "images.arrow")
    spec = {"scheme": "pathological", "clients": 20, "classes_per_client": 2, "held_out": 0.1}
    table = divide_dataset(images.labels, images.test, images.domains, spec, 0)
    write_table(tmp_path / "p.parquet", table)
    data = loading.load_partition(images, tmp_path / "p.parquet", range(10), torch.device("cpu"))
    assert len(data.participating) == 18
    assert sum(map(len, data.train)) + sum(map(len, data.test)) == 1797
    torch.testing.assert_close(data.priors.sum(1), torch.ones(20))
    assert ((data.priors > 0).sum(1) == 2).all()
    batch = data.batch([data.train[3][:2], data.train[4][:5]])
    assert batch.mask.tolist() == [[True] * 2 + [False] * 3, [True] * 5]
    assert batch.images.shape == (2, 5, 8, 8, 1)
    assert batch.labels[1].tolist() == images.labels[data.train[4][:5]].tolist()
