"""Which of the listed images a dataset is made of: classes, domains, caps, the long tail."""

import json

import numpy as np
import pytest
from PIL import Image

from fedloom.data import preparation
from fedloom.data.image_list import ImageList, Item
from fedloom.data.pixels import to_pixels
from fedloom.data.preparation import prepare
from images_on_disk import build, dataset_spec, image_folder, noise
from refusals import refused


def listed(labels, classes="abc", domains=None, test=None):
    """Return a list of images whose k-th item is called k."""
    items = [Item(str(k), Image.Image) for k in range(len(labels))]
    return ImageList(
        items=lambda: items,
        labels=np.array(labels),
        classes=list(classes),
        provenance="a test",
        domains=None if domains is None else np.array(domains),
        test=None if test is None else np.array(test, bool),
    )


def names(ready):
    return [int(item.name) for item in ready.items()]


def test_classes_to_keep_are_numbered_in_the_order_that_is_asked_for():
    ready = prepare(
        listed([0, 1, 2, 0, 1, 2], test=[0, 0, 0, 1, 1, 1]), {"keep_classes": ["c", "a"]}
    )
    assert ready.classes == ["c", "a"]
    assert ready.labels.tolist() == [1, 0, 1, 0]
    assert names(ready) == [0, 2, 3, 5]
    assert ready.test.tolist() == [False, False, True, True]
    with refused("keep_classes", "'d'", "a, b, c"):
        prepare(listed([0, 1, 2]), {"keep_classes": ["d"]})


@pytest.mark.parametrize("settings", [{}, {"keep_classes": ["crane"]}])
def test_two_classes_of_one_name_are_refused(settings):
    """ImageNet has two classes called crane, for which a CLIP would have one prompt."""
    cranes = listed([0, 1, 2], ["crane", "ant", "crane"], test=[0, 0, 1])
    with refused("classes 0 and 2", "'crane'"):
        prepare(cranes, settings)
    named = prepare(cranes, settings | {"class_names": ["bird", "ant", "crane"]})
    assert named.classes == settings.get("keep_classes", ["bird", "ant", "crane"])


def test_the_test_split_is_drawn_from_what_is_kept():
    ready = prepare(listed([0] * 10 + [1] * 10), {"keep_classes": ["b"], "test_fraction": 0.2})
    assert (len(ready.labels), ready.test.sum()) == (10, 2)
    assert min(names(ready)) == 10


def test_small_domains_are_left_out_by_their_training_images():
    domains = ["x"] * 4 + ["y"] * 5 + ["z"] * 3
    test = [0, 0, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0]
    ready = prepare(listed([0] * 12, domains=domains, test=test), {"min_images_per_domain": 3})
    assert sorted(set(ready.domains)) == ["x", "z"], "y has five images, one of them to train on"
    assert ready.test.sum() == 1, "the test images of y go with it"
    settings = {"min_images_per_domain": 4, "test_fraction": 0.5}
    ready = prepare(listed([0] * 12, domains=domains), settings)
    assert sorted(set(ready.domains)) == ["x", "y"], "all images count where the split is drawn"
    with refused("min_images_per_domain", "9"):
        prepare(listed([0] * 12, domains=domains), {"min_images_per_domain": 9})


def test_the_first_training_images_of_every_domain_as_fedbn_takes_them():
    """Images count in the order of the source; a smaller domain keeps all; test images stay."""
    domains = ["x"] * 6 + ["y"] * 2 + ["x"] * 4
    test = [0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0]
    ready = prepare(
        listed([0, 1] * 6, domains=domains, test=test), {"first_per_domain": 3, "max_train": 9}
    )
    assert names(ready) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert ready.test.sum() == 3
    kept = {"first_per_domain": 1, "keep_classes": ["b"]}
    assert names(prepare(listed([0, 1] * 6, domains=domains, test=test), kept)) == [1, 3, 7, 9]
    with refused("first_per_domain", "'b'"):
        prepare(
            listed([0, 1] * 6, domains=domains, test=[*test[:7], 1, *test[8:]]),
            {"first_per_domain": 1},
        )


def test_caps_are_in_proportion_to_the_classes_and_the_same_in_every_run():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    test = np.tile([False, True], 50)
    settings = {"max_train": 20, "max_test": 10}
    first, again = (prepare(listed(labels, test=test), settings) for _ in range(2))
    assert np.bincount(first.labels[~first.test]).tolist() == [12, 6, 2]
    assert np.bincount(first.labels[first.test]).tolist() == [6, 3, 1]
    assert names(first) == names(again)
    of_first_class = [k for k in names(first) if k < 60 and not test[k]]
    assert of_first_class != list(range(0, 24, 2)), "drawn at random"
    whole = prepare(listed(labels, test=test), {"max_train": 50, "max_test": 99})
    assert len(whole.labels) == 100, "a cap that is large enough changes nothing"
    with refused("max_train", "class 'c'"):
        prepare(listed(labels, test=test), {"max_train": 2})


def test_caps_of_every_class():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    test = np.tile([False, True], 50)
    settings = {"max_train_per_class": 9, "max_test_per_class": 20, "max_test": 12}
    ready = prepare(listed(labels, test=test), settings)
    assert np.bincount(ready.labels[~ready.test]).tolist() == [9, 9, 5]
    assert np.bincount(ready.labels[ready.test]).tolist() == [6, 5, 1], "of 20, 15 and 5"


@pytest.mark.parametrize(("factor", "total"), [(10, 19_573), (50, 12_608), (100, 10_847)])
def test_the_long_tail_of_cifar100_has_the_sizes_of_the_literature(factor, total):
    """Papers on CIFAR-100-LT state these sizes, after Cao et al. (2019)."""
    counts = preparation.long_tail(np.full(100, 500), factor)
    assert counts.sum() == total
    assert (counts[0], counts[-1]) == (500, 500 // factor)


def test_the_long_tail_leaves_the_test_images():
    labels = np.tile(np.repeat([0, 1, 2], 9), 2)
    test = np.repeat([False, True], 27)
    ready = prepare(listed(labels, test=test), {"long_tail": {"factor": 9}})
    assert np.bincount(ready.labels[~ready.test]).tolist() == [9, 3, 1]
    assert np.bincount(ready.labels[ready.test]).tolist() == [9, 9, 9]
    with refused("long_tail", "class 'c'"):
        prepare(listed(labels, test=test), {"long_tail": {"factor": 20}})


def test_squash_takes_the_whole_image_and_crop_its_centre():
    image = noise(3, (40, 20))
    squashed = to_pixels(image, False, 10, squash=True)
    assert (squashed == np.asarray(image.resize((10, 10), Image.Resampling.BICUBIC))).all()
    assert not (squashed == to_pixels(image, False, 10)).all()


def test_a_folder_with_all_of_these_keys(tmp_path):
    layers = (["train", "test"], ["photo", "ink"], ["ant", "bee", "cow"])
    root = image_folder(tmp_path / "root", *layers, count=6)
    entry = {"source": "folder", "root": str(root), "domains": True, "image_size": 8}
    store, about = build(
        tmp_path, **entry, resize="squash", keep_classes=["cow", "ant"], max_train=8, max_test=4
    )
    assert about["classes"] == ["cow", "ant"]
    assert np.bincount(store.labels[~store.test]).tolist() == [4, 4]
    assert (len(store), store.test.sum()) == (12, 4)
    first = np.asarray(noise(0).resize((8, 8), Image.Resampling.BICUBIC))
    whole, _ = build(tmp_path, **entry, resize="squash")
    assert any((image == first).all() for image in whole.images(np.arange(len(whole))))


def test_resize_needs_a_size():
    with refused("image_size", "resize"):
        dataset_spec(source="folder", root="x", resize="squash")


def parts(tmp_path):
    """Write two data sets of different sizes and colours that share a class; return their keys."""
    image_folder(tmp_path / "data/digits", ["train", "test"], ["0", "1"], count=3, mode="L")
    image_folder(tmp_path / "data/letters", ["1", "A"], count=5)
    return {
        "digits": {"source": "folder", "root": str(tmp_path / "data/digits")},
        "letters": {
            "source": "folder",
            "root": str(tmp_path / "data/letters"),
            "test_fraction": 0.4,
            "max_train": 4,
        },
    }


def test_several_data_sets_as_one(tmp_path):
    entry = {"source": "several", "parts": parts(tmp_path), "image_size": 8}
    store, about = build(tmp_path, **entry)
    assert about["classes"] == ["digits/0", "digits/1", "letters/1", "letters/A"]
    cells = list(
        zip(store.domains.tolist(), store.labels.tolist(), store.test.tolist(), strict=True)
    )
    assert cells.count(("digits", 1, False)) == cells.count(("digits", 1, True)) == 3
    assert cells.count(("letters", 3, False)) == cells.count(("letters", 3, True)) == 2
    assert store.shape == (8, 8, 3), "grey images become RGB beside coloured ones"
    assert about["test_split"] == "digits: official, letters: 0.4 of every class"
    assert str(tmp_path) not in json.dumps(about)
    capped, _ = build(tmp_path, **entry, max_test=4)
    assert np.bincount(capped.labels[capped.test]).tolist() == [1, 1, 1, 1]


def test_a_part_that_is_wrong_is_named(tmp_path):
    entry = {"source": "several", "parts": parts(tmp_path), "image_size": 8}
    entry["parts"]["digits"]["rot"] = 1
    with refused("datasets.mine.parts.digits.rot"):
        dataset_spec(**entry)


@pytest.mark.parametrize("key", ["image_size", "resize", "skip_unreadable"])
def test_keys_of_all_parts_are_refused_in_one(tmp_path, key):
    entry = {"source": "several", "parts": parts(tmp_path), "image_size": 8}
    entry["parts"]["letters"][key] = {"image_size": 4, "resize": "squash"}.get(key, True)
    with refused(f"datasets.mine.parts.letters.{key}", f"mine.{key}"):
        dataset_spec(**entry)


def test_a_part_may_be_of_several_itself(tmp_path):
    inner = {"source": "several", "parts": parts(tmp_path)}
    outer = {"inner": inner, "digits": inner["parts"]["digits"]}
    store, about = build(tmp_path, source="several", parts=outer, image_size=8)
    assert about["classes"][3:] == ["inner/letters/A", "digits/0", "digits/1"]
    assert store.shape == (8, 8, 3)


def test_the_parts_of_recipes_lie_below_one_root():
    entry = {"a": {"recipe": "cifar100"}, "b": {"recipe": "tiny_imagenet", "root": "/t"}}
    entry["c"] = {"recipe": "cifar100_lt"}
    spec = dataset_spec(source="several", parts=entry, image_size=32, root="/data")
    assert spec["parts"]["a"]["root"] == "/data/cifar100"
    assert spec["parts"]["b"]["root"] == "/t/tiny-imagenet-200"
    assert spec["parts"]["c"]["root"] == "/data/cifar100", "whose files it is made of"
    assert "root" not in spec
    entry["c"] = {"recipe": "cifar100_it"}
    with refused("mine.parts.c", "'cifar100_it'"):
        dataset_spec(source="several", parts=entry, image_size=32)
