"""Raw layouts, as they come out of the archives, read by the recipes that ship."""

import numpy as np
import pytest

from fedloom.common.errors import FedLoomError
from images_on_disk import build, image_folder, noise, save


def tiny_imagenet(root, classes=("n01", "n02")):
    """train/class/images/file, and all test images in val/images with a list beside them."""
    base = root / "tiny-imagenet-200"
    image_folder(base / "train", classes, ["images"], count=3)
    lines = []
    for k in range(4):
        save(base / "val/images" / f"val_{k}.png", noise(50 + k))
        lines.append(f"val_{k}.png\t{classes[k % 2]}\t0\t32\t44\t62")
    (base / "val/val_annotations.txt").write_text("\n".join(lines))
    return base


def test_tiny_imagenet_has_its_test_images_in_one_folder(tmp_path):
    base = tiny_imagenet(tmp_path / "raw")
    store, about = build(tmp_path, recipe="tiny_imagenet", root=str(tmp_path / "raw"))
    assert about["classes"] == ["n01", "n02"]
    assert store.labels.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 0, 1]
    assert store.test.tolist() == [False] * 6 + [True] * 4
    (base / "val/images/val_2.png").unlink()
    with pytest.raises(FedLoomError, match=r"val_annotations.txt, line 3: names .*val_2.png"):
        build(tmp_path, recipe="tiny_imagenet", root=str(tmp_path / "raw"))


def test_office31_has_a_folder_above_the_classes_of_each_domain(tmp_path):
    domains, classes = ["amazon", "dslr"], ["mug", "pen"]
    root = image_folder(tmp_path / "raw", domains, ["images"], classes, count=5)
    store, about = build(tmp_path, recipe="office31", root=str(root))
    assert about["classes"] == classes
    assert np.unique(store.domains).tolist() == domains
    assert store.test.sum() == 4, "a fifth of every class in every domain"
    assert store.shape == (224, 224, 3)
