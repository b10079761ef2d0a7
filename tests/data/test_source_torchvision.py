"""Data sets of torchvision, in each one's own files."""

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

import torchvision_files
from fedloom.data import sources
from images_on_disk import build, dataset_spec, image_folder, noise, save
from refusals import refused


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Write CIFAR-10 in its own format, with 300 and 60 images; return its folder and pixels."""
    labels = np.arange(300) % 10
    root = tmp_path / "data"
    names = "abcdefghij"
    return root, torchvision_files.cifar(root, monkeypatch, CIFAR10, labels, labels[:60], names)


def test_cifar_in_its_own_format(cifar, tmp_path):
    root, pixels = cifar
    store, about = build(tmp_path, source="torchvision", name="CIFAR10", root=str(root))
    assert store.shape == (32, 32, 3)
    assert store.test.tolist() == [False] * 300 + [True] * 60
    assert about["classes"] == list("abcdefghij")
    assert "CIFAR10: 7 files" in about["provenance"]
    expected = pixels["data_batch_2"][3].reshape(3, 32, 32).transpose(1, 2, 0)
    assert (store.images(np.array([63]))[0] == expected).all()
    assert (store.labels == np.tile(np.arange(10), 36)).all()


def test_a_damaged_cifar_is_refused(cifar, tmp_path):
    root, _ = cifar
    batch = root / "cifar-10-batches-py" / "data_batch_3"
    batch.write_bytes(batch.read_bytes()[:-1])
    with refused("CIFAR10", root):
        build(tmp_path, source="torchvision", name="CIFAR10", root=str(root))


def test_targets_other_than_the_listed_labels_are_refused(cifar, tmp_path, monkeypatch):
    image = noise(0, (32, 32))
    monkeypatch.setattr(CIFAR10, "__getitem__", lambda self, row: (image, 3))
    with refused("CIFAR10", "image 0", "target 3", "label 0"):
        build(tmp_path, source="torchvision", name="CIFAR10", root=str(cifar[0]))


def test_a_split_by_name_and_one_that_torchvision_lacks(tmp_path):
    """torchvision has splits of DTD by name, and no splits of EuroSAT."""
    root = tmp_path / "data"
    for name, folder in (("striped", "a"), ("woven", "b")):
        for k in range(6):
            save(root / "dtd/dtd/images" / name / f"{folder}_{k}.jpg", noise(k))
    (root / "dtd/dtd/labels").mkdir()
    for split, rows in (("train", range(4)), ("test", (4,)), ("val", (5,))):
        names = [f"{n}/{f}_{k}.jpg" for n, f in (("striped", "a"), ("woven", "b")) for k in rows]
        (root / "dtd/dtd/labels" / f"{split}1.txt").write_text("\n".join(names) + "\n")
    options = {"source": "torchvision", "root": str(root)}
    store, about = build(tmp_path, name="DTD", **options)
    assert (store.labels.tolist(), store.test.sum()) == ([0] * 4 + [1] * 4 + [0, 1], 2)
    assert about["classes"] == ["striped", "woven"]
    store, _ = build(tmp_path, name="DTD", **options, test={"split": "val"})
    assert (len(store), store.test.sum()) == (10, 2)
    with refused("DTD", "'dev'", "test"):
        build(tmp_path, name="DTD", **options, test={"split": "dev"})
    broken = root / "dtd/dtd/images/woven/b_2.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with refused("DTD train image 6", "b_2.jpg"):
        build(tmp_path, name="DTD", **options)
    store, about = build(tmp_path, name="DTD", **options, skip_unreadable=True)
    assert (len(store), about["skipped"]) == (9, 1)
    image_folder(root / "eurosat" / "2750", ["Forest", "River"], count=10, suffix=".jpg")
    store, about = build(tmp_path, name="EuroSAT", **options, test_fraction=0.2)
    assert np.bincount(store.labels[store.test]).tolist() == [2, 2]
    assert about["classes"] == ["Forest", "River"]


def test_omniglot_keeps_no_labels_and_is_read_for_them(tmp_path, monkeypatch):
    from torchvision.datasets import Omniglot

    monkeypatch.setattr(Omniglot, "_check_integrity", lambda self: True)
    root = tmp_path / "data" / "omniglot-py"
    image_folder(root / "images_background", ["Latin"], ["character01", "character02"], mode="L")
    for folder in (root / "images_background" / "Latin").iterdir():
        for k in range(4):
            (folder / f"{k}.png").rename(folder / f"000{k}_0{k}.png")
    options = {"source": "torchvision", "name": "Omniglot", "root": str(tmp_path / "data")}
    store, about = build(tmp_path, **options)
    assert (store.labels.tolist(), about["classes"]) == ([0] * 4 + [1] * 4, ["0", "1"])
    assert about["named"] is False
    _, about = build(tmp_path, **options, class_names=["alpha", "beta"])
    assert about["classes"] == ["alpha", "beta"] and "named" not in about
    with refused("class_names", "3", "2"):
        build(tmp_path, **options, class_names=["alpha", "beta", "gamma"])
    broken = next(root.rglob("0002_02.png"))
    broken.write_bytes(broken.read_bytes()[:100])
    with refused("Omniglot", "labels cannot be listed"):
        build(tmp_path, **options)


def test_arguments_that_a_parent_class_takes():
    from torchvision import datasets

    spec = dataset_spec(source="torchvision", name="EMNIST", root="x", options={"split": "letters"})
    train, test = sources.torchvision._arguments(datasets.EMNIST, spec)
    assert (train["train"], test["train"], train["split"]) == (True, False, "letters")
    assert train["download"] is False
    spec = dataset_spec(source="torchvision", name="ImageNet", root="x", test={"split": "val"})
    train, test = sources.torchvision._arguments(datasets.ImageNet, spec)
    assert "split" not in train
    assert test["split"] == "val"
    assert "download" not in test


@pytest.mark.parametrize("name", ["CIFAR100", "MNIST", "Flowers102", "SVHN"])
def test_a_missing_dataset_says_what_to_put_where(name, tmp_path):
    with refused(f"torchvision {name}", tmp_path / "data", "download: true"):
        build(tmp_path, source="torchvision", name=name, root=str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("name", "words"), [("CIFAR1000", ["'CIFAR1000'", "'CIFAR100'"]), ("__all__", ["'__all__'"])]
)
def test_an_unknown_torchvision_class(name, words, tmp_path):
    with refused(*words):
        build(tmp_path, source="torchvision", name=name, root=str(tmp_path))


def test_a_dataset_that_does_not_classify(tmp_path):
    coco = {"source": "torchvision", "name": "CocoDetection", "root": str(tmp_path)}
    with refused("CocoDetection", "annFile", "options"):
        build(tmp_path, **coco)
