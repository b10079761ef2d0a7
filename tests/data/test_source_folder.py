"""Images in folders: the layouts that people have, one shape for all, and unreadable files."""

import json
import logging
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedloom.config.datasets import listing
from fedloom.data import pixels
from images_on_disk import build, dataset_spec, image_folder, noise, save
from refusals import refused


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def make(tmp_path, root):
    """Return make(**options), which returns the store of the images in `root`, and its receipt."""
    return lambda **options: build(tmp_path, source="folder", root=str(root), **options)


def test_a_folder_of_classes(make, root, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    image_folder(root, ["cat", "ant", "dog"], count=10)
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "cat" / ".hidden.png").write_text("no image")
    store, about = make(test_fraction=0.2)
    assert (about["classes"], about["skipped"]) == (["ant", "cat", "dog"], 0)
    assert "folder: 31 files, sha256" in about["provenance"], "with notes.txt, no hidden files"
    assert str(tmp_path) not in json.dumps(about)
    assert "images: 30/30" in caplog.text, "progress goes to the log"
    assert np.bincount(store.labels).tolist() == [10] * 3
    assert np.bincount(store.labels[store.test]).tolist() == [2] * 3
    assert set(store.domains) == {"all"}
    first = np.asarray(Image.open(root / "ant" / "0.png"))
    assert (store.images(np.array([0]))[0] == first).all()


def test_a_folder_with_domains_below_train_and_test(make, root):
    layers = (["train", "test"], ["photo", "sketch"], ["ant", "bee"])
    image_folder(root, *layers)
    store, about = make(domains=True)
    cells = Counter(zip(store.test, store.domains, store.labels, strict=True))
    assert cells == {(t, d, c): 4 for t in (False, True) for d in layers[1] for c in (0, 1)}
    assert about["classes"] == ["ant", "bee"]


def test_a_folder_with_its_own_names_for_the_split(make, root):
    image_folder(root, ["train", "val", "test"], ["ant", "bee"])
    with refused("root", "test, train, val", "split"):
        make()
    store, _ = make(split=["train", "val"])
    assert (len(store), store.test.sum()) == (16, 8)
    with refused("root/dev", "split"):
        make(split=["train", "dev"])


def test_a_file_names_the_classes_of_folders(make, root):
    image_folder(root, ["n07", "n03", "n05"], count=10)
    (root / "names.txt").write_text("n09 ox\nn07 bee eater \n\nn03  ant\nn05 ant\n")
    store, about = make(names="names.txt", renamed={"n05": "fire ant"})
    assert about["classes"] == ["bee eater", "ant", "fire ant"], "in the order of the file"
    first = np.asarray(Image.open(root / "n07" / "0.png"))
    assert (store.images(np.flatnonzero(store.labels == 0))[0] == first).all()
    with refused("1 and 2", "'ant'"):
        make(names="names.txt")
    (root / "n07").rename(root / "n08")
    with refused("root/names.txt", "'n08'"):
        make(names="names.txt")
    with refused("root/name.txt"):
        make(names="name.txt")
    for number, folder in enumerate(("n03", "n05", "n08")):
        (root / folder).rename(root / f"{number}")
    assert make(names="names.txt")[1]["classes"] == ["ox", "bee eater", "ant"]


def test_the_store_is_made_again_for_corrected_names_and_test_lists(root, tmp_path):
    """Corrected files have the same length; one lies within the folder, and one outside of it."""
    image_folder(root / "train", ["n01", "n02"], count=1)
    image_folder(root / "val", count=2)
    names = tmp_path / "names.txt"
    tests = root / "val/list.txt"
    names.write_text("n01 tench\nn02 shark\n")
    tests.write_text("0.png n01\n1.png n02\n")
    keys = {"split": ["train", "val"], "test_list": {"file": "list.txt"}, "names": str(names)}
    spec = dataset_spec(source="folder", root=str(root), **keys)
    before = listing(spec)
    names.write_text("n01 trout\nn02 shark\n")
    renamed = listing(spec)
    tests.write_text("0.png n02\n1.png n01\n")
    corrected = listing(spec)
    assert len({found["sha256"] for found in (before, renamed, corrected)}) == 3
    names.unlink()
    assert listing(spec)["files"] == before["files"] - 1, "a plan does without"


@pytest.mark.parametrize(
    ("layers", "options", "words"),
    [
        ((["photo", "sketch"], ["ant", "bee"]), {}, ["photo", "'ant'", "domains: true"]),
        ((["ant", "bee"],), {"domains": True}, ["root/ant/*", "domains"]),
        ((), {}, ["root"]),
        (
            (["amazon", "dslr"], ["images"], ["mug", "pen"]),
            {"domains": True},
            ["amazon/images", "'mug'", "classes_in: images"],
        ),
        ((["ant", "bee"], ["images"]), {}, ["ant", "'images'", "images_in: images"]),
        ((["ant"], ["images"], ["more"]), {"images_in": "images"}, ["ant/images", "'more'"]),
        ((["ant", "bee"],), {"images_in": "images"}, ["ant/images", "images_in"]),
        ((["ant", "bee"],), {"classes_in": "images"}, ["root/images", "classes_in"]),
    ],
)
def test_a_layer_too_many_or_too_few(layers, options, words, make, root):
    image_folder(root, *layers, count=1)
    with refused(*words):
        make(**options)


def test_a_missing_folder_an_empty_class_and_a_folder_beside_images(make, root):
    with refused(root, "[domain/]class/file"):
        make()
    image_folder(root, ["ant", "bee"])
    (root / "cow").mkdir()
    with refused("root/cow"):
        make()
    (root / "cow").rename(root / "bee" / "old")
    with refused("bee", "'old'"):
        make()


def test_no_image_of_a_class_is_left_out_without_a_word(make, root, caplog):
    """A file's content makes it an image: one without suffix is read; other formats are refused."""
    caplog.set_level(logging.INFO)
    image_folder(root, ["ant", "bee"])
    (root / "bee/3.png").rename(root / "bee/3")
    (root / "bee/notes.txt").write_text("no image")
    store, _ = make()
    assert np.bincount(store.labels).tolist() == [4, 4]
    assert "bee: left out 1 files that are no images: notes.txt" in caplog.text
    for name in ("4.heic", "4.npy", "4.dcm", "LICENSE"):
        (root / "bee" / name).write_bytes(b"of another format")
        with refused(f"bee/{name}: unreadable image", "remove the file", "skip_unreadable"):
            make()
        assert make(skip_unreadable=True)[1]["skipped"] == 1
        (root / "bee" / name).unlink()


@pytest.mark.parametrize(
    ("layers", "options", "place"),
    [
        ((["ant", "bee"],), {}, ""),
        ((["ink", "oil"], ["ant", "bee"]), {"domains": True}, "oil"),
        ((["train", "test"], ["ant", "bee"]), {}, ""),
        ((["train", "test"], ["ant", "bee"]), {}, "test"),
        ((["ant", "bee"], ["images"]), {"images_in": "images"}, "bee"),
    ],
)
def test_an_image_beside_folders_of_classes_is_refused(layers, options, place, make, root):
    image_folder(root, *layers)
    (root / place / "README.txt").write_text("no image")
    make(**options)
    for name in ("loose.heic", "loose.npy"):
        (root / place / name).write_bytes(b"of another format")
        with refused(root / place / name, "no folder of a class"):
            make(**options)
        (root / place / name).unlink()
    save(root / place / "loose.JPG", noise(0))
    with refused(root / place / "loose.JPG", "no folder of a class"):
        make(**options)


def test_files_beside_folders_of_classes_that_are_no_images_are_logged(make, root, caplog):
    caplog.set_level(logging.INFO)
    image_folder(root, ["ant", "bee"])
    for name in ("paper.pdf", "features.h5"):
        (root / name).write_bytes(b"no image")
    make()
    assert "left out 2 files that are no images: features.h5, paper.pdf" in caplog.text


def test_the_last_images_of_every_domain_are_test_images(make, root):
    """FedPHA's code counts through all images of a domain, whatever their class."""
    image_folder(root, ["photo", "sketch"], ["ant", "bee"], count=7)
    store, about = make(domains=True, test_last={"images": 2, "of": 5})
    once = [False, False, False, True, True] * 2 + [False] * 3 + [True]
    assert store.test.tolist() == once * 2, "the count starts again in the next domain"
    assert about["test_split"] == "the last 2 of every 5 images of a domain"


def test_the_last_images_do_not_stand_in_for_a_folder_of_test_images(make, root):
    for half in ("train", "test"):
        image_folder(root / half, ["ant", "bee"], count=5)
    with refused("test_last", root, "test images"):
        make(test_last={"images": 2, "of": 5})


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["0.png ant", "1.png bee", "2.png cow"], ["line 3", "'cow'"]),
        (["0.png ant"], ["2 of 3", "images/1.png"]),
        (["0.png ant", "1.png bee", "./0.png ant"], ["line 3", "images/0.png"]),
        (["0.png ant", "3.png bee"], ["line 2", "images/3.png"]),
        (["../../train/ant/0.png ant"], ["line 1", "train/ant/0.png"]),
    ],
)
def test_a_test_list_has_every_image_of_its_folder_once(rows, words, make, root):
    image_folder(root / "train", ["ant", "bee"], count=1)
    image_folder(root / "val/images", count=3)
    (root / "val/images/notes.txt").write_text("no image")
    listed = {"file": "list.txt", "images": "images"}
    (root / "val/list.txt").write_text("0.png bee\n1.png ant\nsub/../2.png bee\n")
    store, _ = make(split=["train", "val"], test_list=listed)
    assert store.labels[store.test].tolist() == [1, 0, 1]
    (root / "val/list.txt").write_text("\n".join(rows))
    with refused("val/list.txt", *words):
        make(split=["train", "val"], test_list=listed)
    with refused("val/pictures", "test_list"):
        make(split=["train", "val"], test_list=listed | {"images": "pictures"})


def test_other_sizes_need_image_size(make, root):
    image_folder(root, ["ant", "bee"])
    save(root / "bee" / "1.png", noise(1, (40, 20)))
    with refused("bee/1.png is 40 x 20", "ant/0.png is 12 x 10", "image_size"):
        make()
    store, _ = make(image_size=8)
    assert store.shape == (8, 8, 3)
    wide = Image.open(root / "bee" / "1.png").resize((16, 8), Image.Resampling.BICUBIC)
    assert (store.images(np.array([5]))[0] == np.asarray(wide.crop((4, 0, 12, 8)))).all()


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40))
def test_resizing_always_gives_the_square(width, height, size):
    assert pixels.to_pixels(noise(0, (width, height)), False, size).shape == (size, size, 3)


def test_grey_stays_grey_and_a_mixture_is_rgb(make, root):
    image_folder(root, ["ant", "bee"], mode="L")
    assert make()[0].shape == (10, 12, 1)
    colour = noise(7)
    save(root / "bee" / "3.png", colour)
    store, about = make()
    assert (store.shape, about["images"]) == ((10, 12, 3), 8)
    pixels = store.images(np.arange(8))
    assert (pixels[0] == np.asarray(Image.open(root / "ant/0.png"))[..., None]).all()
    assert (pixels[7] == np.asarray(colour)).all()
    save(root / "ant" / "0.png", colour)  # now colour comes first
    assert make()[0].shape == (10, 12, 3)


def test_sixteen_bits_palettes_and_transparency():
    deep = np.arange(120, dtype=np.uint16).reshape(10, 12) * 500
    assert (pixels.to_pixels(Image.fromarray(deep), False, None)[..., 0] == deep >> 8).all()
    for mode, channels in (("P", 3), ("RGBA", 3), ("LA", 1), ("1", 1), ("CMYK", 3)):
        assert pixels.to_pixels(noise(0).convert(mode), False, None).shape == (10, 12, channels)
    with pytest.raises(ValueError, match="mode F has no fixed range"):
        pixels.to_pixels(Image.new("F", (3, 3)), False, None)


@pytest.mark.parametrize("keep", [0, 20, 0.6])
def test_a_truncated_image_is_named_or_counted(keep, make, root, caplog):
    """test_odd_data.py damages files of other formats."""
    caplog.set_level(logging.INFO)
    image_folder(root, ["ant", "bee"])
    broken = root / "ant/2.png"
    data = broken.read_bytes()
    broken.write_bytes(data[: int(keep * len(data)) if keep < 1 else keep])
    with refused("ant/2.png: unreadable image"):
        make()
    store, about = make(skip_unreadable=True)
    assert (len(store), about["images"], about["skipped"]) == (7, 7, 1)
    assert f"skipped {broken}: unreadable" in caplog.text
    assert "1 of 8 images were unreadable" in caplog.text


@pytest.mark.parametrize("count", [1, 2])
def test_a_class_without_a_readable_image_is_an_error(make, root, count):
    image_folder(root, ["ant", "bee"], count=2)
    for k in range(count):
        (root / f"bee/{k}.png").write_bytes(b"")
    if count == 1:
        assert make(skip_unreadable=True)[1]["skipped"] == 1
    else:
        with refused("class bee"):
            make(skip_unreadable=True)


def test_nothing_readable_is_an_error(make, root):
    image_folder(root, ["a", "b"])
    for file in root.rglob("*.png"):
        file.write_bytes(b"")
    with refused("8 images", "a/0.png"):
        make(skip_unreadable=True)
