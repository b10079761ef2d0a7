"""Small data sets in the files that torchvision reads, which is told their checksums."""

import hashlib
import pickle
import struct

import numpy as np
from torchvision import datasets


def _checksum(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def cifar(root, monkeypatch, kind, train, test, names):
    """Write CIFAR-10 or CIFAR-100 with the labels `train` and `test`; return batches' pixels."""
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    fine = kind is datasets.CIFAR100
    pixels = {}

    def batch(name, labels):
        pixels[name] = rng.integers(0, 256, (len(labels), 3 * 32 * 32), np.uint8)
        key = "fine_labels" if fine else "labels"
        content = pickle.dumps({"data": pixels[name], key: [int(label) for label in labels]})
        (folder / name).write_bytes(content)
        return [name, _checksum(content)]

    files = [name for name, _ in kind.train_list]
    parts = zip(files, np.array_split(train, len(files)), strict=True)
    monkeypatch.setattr(kind, "train_list", [batch(name, labels) for name, labels in parts])
    monkeypatch.setattr(kind, "test_list", [batch(name, test) for name, _ in kind.test_list])
    meta = pickle.dumps({kind.meta["key"]: list(names)})
    (folder / kind.meta["filename"]).write_bytes(meta)
    monkeypatch.setattr(kind, "meta", dict(kind.meta, md5=_checksum(meta)))
    return pixels


def _idx(array):
    """Return an array in the file format of MNIST."""
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def mnist(root, kind, train, test):
    """Write MNIST or Fashion-MNIST; `train` and `test` are labels."""
    raw = root / kind / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, labels in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, (len(labels), 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(_idx(pixels))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(_idx(np.asarray(labels)))


def svhn(root, monkeypatch, train, test):
    """Write SVHN, in which the digit 0 has the label 10; `train` and `test` are digits."""
    from scipy.io import savemat

    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    split_list = dict(datasets.SVHN.split_list)
    for half, digits in (("train", train), ("test", test)):
        digits = np.asarray(digits)
        file = root / f"{half}_32x32.mat"
        pixels = rng.integers(0, 256, (32, 32, 3, len(digits)), np.uint8)
        savemat(file, {"X": pixels, "y": np.where(digits == 0, 10, digits)[:, None]})
        url, name, _ = split_list[half]
        split_list[half] = [url, name, _checksum(file.read_bytes())]
    monkeypatch.setattr(datasets.SVHN, "split_list", split_list)
