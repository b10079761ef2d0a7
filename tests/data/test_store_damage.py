"""A damaged image store: a read gives the pixels that were written, or one line."""

import zlib

import numpy as np
import pytest

from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import read_receipt
from fedloom.data import store

SHAPE = (3, 2, 1)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Write a store of five images, of which a chunk holds two, and return its path."""
    rng = np.random.default_rng(0)
    examples = [
        store.Example(rng.integers(0, 256, SHAPE, np.uint8), k % 2, k < 2, f"domain {k}")
        for k in range(5)
    ]
    path = tmp_path / "images.arrow"
    with monkeypatch.context() as patch:
        patch.setattr(store, "MAX_CHUNK_IMAGES", 2)
        store.write_images(path, examples, SHAPE, ["ant", "bee"], "noise")
    return path


def _read(path):
    images = store.ImageStore(path)
    return images.images(np.arange(5)).tobytes(), images.domains


@pytest.mark.parametrize("place", ["start", "pixels", "domain", "end"])
def test_a_flipped_bit_is_noticed_when_all_is_read(path, place):
    pixels, domains = _read(path)
    assert len(pixels) == 30 and domains.tolist() == [f"domain {k}" for k in range(5)]
    data = bytearray(path.read_bytes())
    first = read_receipt(path)["parts"][0][0]
    at = {"start": 0, "pixels": first, "domain": data.index(b"domain 3"), "end": len(data) - 1}
    data[at[place]] ^= 1
    path.write_bytes(data)
    with pytest.raises(FedLoomError, match=r"images.arrow: ") as error:
        _read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "longer", "missing"])
def test_a_store_of_another_length_is_refused_when_it_is_opened(path, damage):
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[:-1] if damage == "cut" else data + b"\0")
    with pytest.raises(FedLoomError, match=r"images.arrow: "):
        store.ImageStore(path)


def test_pixels_are_verified_chunk_by_chunk_when_they_are_first_read(path, monkeypatch):
    at, length, _ = read_receipt(path)["parts"][1]
    data = bytearray(path.read_bytes())
    data[at + length - 1] ^= 1
    path.write_bytes(data)
    images = store.ImageStore(path)
    real = zlib.crc32
    verified = []
    monkeypatch.setattr(store.zlib, "crc32", lambda part: verified.append(1) or real(part))
    assert images.labels.tolist() == [0, 1, 0, 1, 0] and not verified
    first = images.images(np.array([0, 1, 4]))
    assert first.shape == (3, *SHAPE) and len(verified) == 2
    images.images(np.array([[1, 4]]))
    assert len(verified) == 2, "each chunk is verified once"
    for _ in range(2):
        with pytest.raises(FedLoomError, match=r"images.arrow: "):
            images.images(np.array([0, 2]))


def test_a_store_with_the_receipt_of_another_is_refused(path, tmp_path):
    facts = read_receipt(path)
    examples = [store.Example(np.zeros(SHAPE, np.uint8), k % 2, k < 2, "x") for k in range(5)]
    store.write_images(tmp_path / "other.arrow", examples, SHAPE, ["ant", "bee"], "noise")
    for receipt in (facts, {"sha256": facts["sha256"]}):
        with pytest.raises(FedLoomError, match=r"other.arrow: "):
            store.ImageStore(tmp_path / "other.arrow", receipt)
