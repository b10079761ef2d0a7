"""Images as people have them, in each format's own files, into one store."""

import io
import json
import logging
import os
import pickle
import struct
import subprocess
import sys
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedloom import config, inputs, schema
from fedloom.data import images, sources, splits
from fedloom.data.store import ImageStore
from fedloom.errors import FedLoomError
from fedloom.plugins import ROOT


def _spec(**entry):
    """An entry of the config's `datasets` with its defaults, checked as a config is."""
    return config._kind("datasets", "mine", entry, schema.load("config"))


def _build(folder, **entry):
    sources.build(_spec(**entry), folder / "images.arrow", folder / "about.json")
    return ImageStore(folder / "images.arrow"), json.loads((folder / "about.json").read_text())


def _noise(seed, size=(12, 10), mode="RGB"):
    shape = size[::-1] if mode == "L" else (*size[::-1], 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8), mode)


def _save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def _folder(root, *layers, count=4, suffix=".png", mode="RGB"):
    """`count` images in every root/a/b, a of the first layer, b of the second ..."""
    places = [root]
    for names in layers:
        places = [place / name for place in places for name in names]
    for number, place in enumerate(places):
        for k in range(count):
            _save(place / f"{k}{suffix}", _noise(100 * number + k, mode=mode))
    return root


def _pixels(store):
    return store.images(np.arange(len(store)))


def test_every_source_of_the_schema_is_there():
    assert set(schema.load("config")["$defs"]["dataset"]) == set(sources.SOURCES)


# ---- glyphs -----------------------------------------------------------------------------------


def test_glyphs_are_drawn_the_same_every_time(tmp_path):
    (tmp_path / "again").mkdir()
    options = {"source": "glyphs", "classes": 10, "draws": 4}
    store, about = _build(tmp_path, **options)
    _build(tmp_path / "again", **options)
    name = "images.arrow"
    assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert len(store) == about["images"] == 10 * 12 * 4
    assert store.shape == (32, 32, 1)
    assert all(unicodedata.lookup(name.upper()) for name in about["classes"])
    cells = Counter(zip(store.labels, store.domains, store.test, strict=True))
    assert len(set(store.domains)) == 4
    assert {count for (*_, test), count in cells.items() if test} == {3}
    assert {count for (*_, test), count in cells.items() if not test} == {9}


def test_the_default_glyphs_are_100_classes_that_two_cores_can_train():
    spec = _spec(source="glyphs")
    assert spec["classes"] == 100
    assert 3600 <= spec["classes"] * 12 * spec["draws"] <= 6000


# ---- the fixed test split ---------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(1, 60), st.floats(0.05, 0.95))
def test_the_fixed_split_is_stratified_as_far_as_counts_allow(seed, count, fraction):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    domains = rng.choice(["a", "b", "c"], count)
    test = splits.fixed_test_split(labels, domains, fraction)
    assert (test == splits.fixed_test_split(labels, domains, fraction)).all()
    kept = 0
    for label in np.unique(labels):
        for domain in np.unique(domains[labels == label]):
            cell = test[(labels == label) & (domains == domain)]
            assert abs(cell.sum() - len(cell) * fraction) < 2
            assert not cell.all(), "no training image is left"
            kept += 1
    assert test.sum() <= count * fraction + 1
    assert test.sum() >= count * fraction - 1 - kept


# ---- folder -----------------------------------------------------------------------------------


def test_a_folder_of_classes(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    root = _folder(tmp_path / "root", ["cat", "ant", "dog"], count=10)
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "cat" / ".hidden.png").write_text("no image")
    store, about = _build(tmp_path, source="folder", root=str(root), test_fraction=0.2)
    assert about["classes"] == ["ant", "cat", "dog"]
    assert about["skipped"] == 0
    assert "30 files" not in about["provenance"]  # notes.txt is listed, hidden files are not
    assert "folder: 31 files, sha256" in about["provenance"]
    assert str(tmp_path) not in json.dumps(about)
    assert "1 files are no images by their names" in caplog.text
    assert "images: 30/30" in caplog.text, "progress goes to the log"
    assert np.bincount(store.labels).tolist() == [10] * 3
    assert np.bincount(store.labels[store.test]).tolist() == [2] * 3
    assert set(store.domains) == {"all"}
    first = np.asarray(Image.open(root / "ant" / "0.png"))
    assert (store.images(np.array([0]))[0] == first).all()


def test_a_folder_with_domains_below_train_and_test(tmp_path):
    layers = (["train", "test"], ["photo", "sketch"], ["ant", "bee"])
    root = _folder(tmp_path / "root", *layers)
    store, about = _build(tmp_path, source="folder", root=str(root), domains=True)
    cells = Counter(zip(store.test, store.domains, store.labels, strict=True))
    assert cells == {(t, d, c): 4 for t in (False, True) for d in layers[1] for c in (0, 1)}
    assert about["classes"] == ["ant", "bee"]


def test_a_folder_with_its_own_names_for_the_split(tmp_path):
    root = _folder(tmp_path / "root", ["train", "val", "test"], ["ant", "bee"])
    with pytest.raises(FedLoomError, match=r"root holds test, train, val: name the folders"):
        _build(tmp_path, source="folder", root=str(root))
    store, _ = _build(tmp_path, source="folder", root=str(root), split=["train", "val"])
    assert (len(store), store.test.sum()) == (16, 8)
    with pytest.raises(FedLoomError, match=r"root/dev: no such folder, but split names it"):
        _build(tmp_path, source="folder", root=str(root), split=["train", "dev"])


def test_images_may_lie_deeper_as_in_tiny_imagenet(tmp_path):
    root = _folder(tmp_path / "root", ["n01", "n02"], ["images"])
    assert len(_build(tmp_path, source="folder", root=str(root))[0]) == 8


@pytest.mark.parametrize(
    ("layers", "options", "line"),
    [
        ((["photo", "sketch"], ["ant", "bee"]), {}, "photo: folders where images .* domains: true"),
        ((["ant", "bee"],), {"domains": True}, "ant: no class folders .* domains: false"),
        ((), {}, "root: no class folders in it"),
    ],
)
def test_a_layer_too_many_or_too_few(layers, options, line, tmp_path):
    root = _folder(tmp_path / "root", *layers)
    with pytest.raises(FedLoomError, match=line):
        _build(tmp_path, source="folder", root=str(root), **options)


def test_a_missing_folder_and_an_empty_class(tmp_path):
    root = tmp_path / "root"
    with pytest.raises(FedLoomError, match=r"root: no such folder; expected \[domain/\]class/file"):
        _build(tmp_path, source="folder", root=str(root))
    _folder(root, ["ant", "bee"])
    (root / "cow").mkdir()
    with pytest.raises(FedLoomError, match=r"root/cow: a class folder without images"):
        _build(tmp_path, source="folder", root=str(root))


# ---- one shape --------------------------------------------------------------------------------


def test_other_sizes_need_image_size(tmp_path):
    root = _folder(tmp_path / "root", ["ant", "bee"])
    _save(root / "bee" / "1.png", _noise(1, (40, 20)))
    with pytest.raises(FedLoomError, match=r"bee/1.png is 40 x 20 .*ant/0.png is 12 x 10"):
        _build(tmp_path, source="folder", root=str(root))
    store, _ = _build(tmp_path, source="folder", root=str(root), image_size=8)
    assert store.shape == (8, 8, 3)
    wide = Image.open(root / "bee" / "1.png").resize((16, 8), Image.Resampling.BICUBIC)
    assert (store.images(np.array([5]))[0] == np.asarray(wide.crop((4, 0, 12, 8)))).all()


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40))
def test_resizing_always_gives_the_square(width, height, size):
    assert images.to_pixels(_noise(0, (width, height)), False, size).shape == (size, size, 3)


def test_grey_stays_grey_and_a_mixture_is_rgb(tmp_path):
    root = _folder(tmp_path / "root", ["ant", "bee"], mode="L")
    assert _build(tmp_path, source="folder", root=str(root))[0].shape == (10, 12, 1)
    colour = _noise(7)
    _save(root / "bee" / "3.png", colour)
    store, about = _build(tmp_path, source="folder", root=str(root))
    assert store.shape == (10, 12, 3)
    assert about["images"] == 8
    assert (_pixels(store)[0] == np.asarray(Image.open(root / "ant/0.png"))[..., None]).all()
    assert (_pixels(store)[7] == np.asarray(colour)).all()
    _save(root / "ant" / "0.png", colour)  # the other way round: no second start
    assert _build(tmp_path, source="folder", root=str(root))[0].shape == (10, 12, 3)


def test_sixteen_bits_palettes_and_transparency(tmp_path):
    deep = np.arange(120, dtype=np.uint16).reshape(10, 12) * 500
    assert (images.to_pixels(Image.fromarray(deep), False, None)[..., 0] == deep >> 8).all()
    for mode, channels in (("P", 3), ("RGBA", 3), ("LA", 1), ("1", 1), ("CMYK", 3)):
        assert images.to_pixels(_noise(0).convert(mode), False, None).shape == (10, 12, channels)
    with pytest.raises(ValueError, match="mode F has no fixed range"):
        images.to_pixels(Image.new("F", (3, 3)), False, None)


# ---- unreadable images ------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tiff", ".webp", ".gif"])
@pytest.mark.parametrize("keep", [0, 20, 0.6])
def test_a_truncated_image_is_named_or_counted(suffix, keep, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    root = _folder(tmp_path / "root", ["ant", "bee"], suffix=suffix)
    broken = root / "ant" / f"2{suffix}"
    data = broken.read_bytes()
    broken.write_bytes(data[: int(keep * len(data)) if keep < 1 else keep])
    with pytest.raises(FedLoomError, match=rf"ant/2\{suffix}: unreadable image") as error:
        _build(tmp_path, source="folder", root=str(root))
    assert "\n" not in str(error.value)
    store, about = _build(tmp_path, source="folder", root=str(root), skip_unreadable=True)
    assert (len(store), about["images"], about["skipped"]) == (7, 7, 1)
    assert f"skipped {broken}: unreadable" in caplog.text
    assert "1 of 8 images were unreadable" in caplog.text


def test_nothing_readable_is_an_error(tmp_path):
    for name in "ab":
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / "x.png").write_bytes(b"")
    with pytest.raises(FedLoomError, match=r"none of 2 images can be read, the first is .*a/x.png"):
        _build(tmp_path, source="folder", root=str(tmp_path / "root"), skip_unreadable=True)


# ---- torchvision ------------------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """CIFAR-10 in its own format, 300 and 60 images; torchvision is told their checksums."""
    import hashlib

    from torchvision.datasets import CIFAR10

    folder = tmp_path / "data" / CIFAR10.base_folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    pixels = {}

    def batch(name, count):
        pixels[name] = rng.integers(0, 256, (count, 3 * 32 * 32), np.uint8)
        labels = (np.arange(count) % 10).tolist()
        content = pickle.dumps({"data": pixels[name], "labels": labels})
        (folder / name).write_bytes(content)
        return [name, hashlib.md5(content).hexdigest()]

    meta = pickle.dumps({"label_names": list("abcdefghij")})
    (folder / "batches.meta").write_bytes(meta)
    described = dict(CIFAR10.meta, md5=hashlib.md5(meta).hexdigest())
    monkeypatch.setattr(CIFAR10, "meta", described)
    monkeypatch.setattr(CIFAR10, "train_list", [batch(f"data_batch_{k}", 60) for k in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [batch("test_batch", 60)])
    return tmp_path / "data", pixels


def test_cifar_in_its_own_format(cifar, tmp_path):
    root, pixels = cifar
    store, about = _build(tmp_path, source="torchvision", name="CIFAR10", root=str(root))
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
    with pytest.raises(FedLoomError, match=r"CIFAR10: not there, or not whole .*corrupted"):
        _build(tmp_path, source="torchvision", name="CIFAR10", root=str(root))


def _idx(array):
    """The file format of MNIST."""
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def test_mnist_in_its_own_format(tmp_path):
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", 50), ("t10k", 20)):
        pixels = rng.integers(0, 256, (count, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(_idx(pixels))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(_idx(np.arange(count) % 10))
    store, about = _build(
        tmp_path, source="torchvision", name="MNIST", root=str(tmp_path / "data"), image_size=16
    )
    assert (len(store), store.test.sum(), store.shape) == (70, 20, (16, 16, 1))
    assert about["classes"][3] == "3 - three"


def test_a_split_by_name_and_one_that_torchvision_lacks(tmp_path):
    """DTD names its halves, EuroSAT has none."""
    root = tmp_path / "data"
    for name, folder in (("striped", "a"), ("woven", "b")):
        for k in range(6):
            _save(root / "dtd/dtd/images" / name / f"{folder}_{k}.jpg", _noise(k))
    (root / "dtd/dtd/labels").mkdir()
    for split, rows in (("train", range(4)), ("test", (4,)), ("val", (5,))):
        names = [f"{n}/{f}_{k}.jpg" for n, f in (("striped", "a"), ("woven", "b")) for k in rows]
        (root / "dtd/dtd/labels" / f"{split}1.txt").write_text("\n".join(names) + "\n")
    options = {"source": "torchvision", "root": str(root)}
    store, about = _build(tmp_path, name="DTD", **options)
    assert (store.labels.tolist(), store.test.sum()) == ([0] * 4 + [1] * 4 + [0, 1], 2)
    assert about["classes"] == ["striped", "woven"]
    store, _ = _build(tmp_path, name="DTD", **options, test={"split": "val"})
    assert (len(store), store.test.sum()) == (10, 2)
    with pytest.raises(FedLoomError, match=r"DTD: .*'dev'.*set options, train or test"):
        _build(tmp_path, name="DTD", **options, test={"split": "dev"})
    broken = root / "dtd/dtd/images/woven/b_2.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(FedLoomError, match=r"DTD train image 6 \(.*b_2.jpg\): unreadable image"):
        _build(tmp_path, name="DTD", **options)
    store, about = _build(tmp_path, name="DTD", **options, skip_unreadable=True)
    assert (len(store), about["skipped"]) == (9, 1)
    _folder(root / "eurosat" / "2750", ["Forest", "River"], count=10, suffix=".jpg")
    store, about = _build(tmp_path, name="EuroSAT", **options, test_fraction=0.2)
    assert np.bincount(store.labels[store.test]).tolist() == [2, 2]
    assert about["classes"] == ["Forest", "River"]


def test_omniglot_keeps_no_labels_and_is_read_for_them(tmp_path, monkeypatch):
    from torchvision.datasets import Omniglot

    monkeypatch.setattr(Omniglot, "_check_integrity", lambda self: True)
    root = tmp_path / "data" / "omniglot-py"
    _folder(root / "images_background", ["Latin"], ["character01", "character02"], mode="L")
    for folder in (root / "images_background" / "Latin").iterdir():
        for k in range(4):
            (folder / f"{k}.png").rename(folder / f"000{k}_0{k}.png")
    options = {"source": "torchvision", "name": "Omniglot", "root": str(tmp_path / "data")}
    store, about = _build(tmp_path, **options)
    assert (store.labels.tolist(), about["classes"]) == ([0] * 4 + [1] * 4, ["0", "1"])
    assert about["named"] is False
    _, about = _build(tmp_path, **options, class_names=["alpha", "beta"])
    assert about["classes"] == ["alpha", "beta"] and "named" not in about
    with pytest.raises(FedLoomError, match="class_names has 3 names for 2 classes"):
        _build(tmp_path, **options, class_names=["alpha", "beta", "gamma"])
    broken = next(root.rglob("0002_02.png"))
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(FedLoomError, match=r"Omniglot: unreadable image .* none can be skipped"):
        _build(tmp_path, **options)


def test_arguments_that_a_parent_class_takes():
    from torchvision import datasets

    spec = _spec(source="torchvision", name="EMNIST", root="x", options={"split": "letters"})
    train, test = sources.torchvision._arguments(datasets.EMNIST, spec)
    assert (train["train"], test["train"], train["split"]) == (True, False, "letters")
    assert train["download"] is False
    spec = _spec(source="torchvision", name="ImageNet", root="x", test={"split": "val"})
    train, test = sources.torchvision._arguments(datasets.ImageNet, spec)
    assert "split" not in train
    assert test["split"] == "val"
    assert "download" not in test


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("CIFAR100", "data/cifar-100-python"),
        ("MNIST", "data/MNIST/raw"),
        ("Flowers102", "data/flowers-102"),
        ("SVHN", "data"),
    ],
)
def test_a_missing_dataset_says_what_to_put_where(name, place, tmp_path):
    line = rf"torchvision {name}: not there, .* put its unpacked files at .*{place}[^ ]*, or set"
    with pytest.raises(FedLoomError, match=line):
        _build(tmp_path, source="torchvision", name=name, root=str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("name", "line"),
    [("CIFAR1000", "no dataset 'CIFAR1000'; did you mean 'CIFAR100'"), ("__all__", "no dataset")],
)
def test_an_unknown_torchvision_class(name, line, tmp_path):
    with pytest.raises(FedLoomError, match=line):
        _build(tmp_path, source="torchvision", name=name, root=str(tmp_path))


def test_a_dataset_that_does_not_classify(tmp_path):
    coco = {"source": "torchvision", "name": "CocoDetection", "root": str(tmp_path)}
    with pytest.raises(FedLoomError, match=r"CocoDetection: .*annFile.*; set options"):
        _build(tmp_path, **coco)


# ---- Parquet ----------------------------------------------------------------------------------


def _png(seed, **options):
    stream = io.BytesIO()
    _noise(seed, **options).save(stream, "PNG")
    return stream.getvalue()


def _parquet(path, labels, start=0, structs=True, names=None, **columns):
    data = [_png(start + k) for k in range(len(labels))]
    image = [{"bytes": d, "path": f"{k}.png"} for k, d in enumerate(data)] if structs else data
    table = pa.table({"image": image, "label": labels, **columns})
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, row_group_size=50)


def test_parquet_as_hugging_face_publishes_it(tmp_path):
    names = ["ant", "bee", "cow"]
    for part in range(2):
        path = tmp_path / "data" / f"train-0000{part}-of-00002.parquet"
        _parquet(path, [k % 3 for k in range(90)], 1000 * part, names=names)
    _parquet(tmp_path / "data" / "test-00000.parquet", [2, 1], 5000, names=names)
    store, about = _build(
        tmp_path,
        source="parquet",
        train_files=f"{tmp_path}/data/train-*.parquet",
        test_files=f"{tmp_path}/data/test-*.parquet",
    )
    assert about["classes"] == names
    assert store.test.tolist() == [False] * 180 + [True] * 2
    assert store.labels.tolist() == [k % 3 for k in range(90)] * 2 + [2, 1]
    for row, seed in ((0, 0), (89, 89), (90, 1000), (181, 5001)):
        assert (store.images(np.array(row)) == np.asarray(_noise(seed))).all()
    assert "parquet: 3 files" in about["provenance"]


def test_parquet_with_numbers_for_names(tmp_path):
    _parquet(tmp_path / "x.parquet", [3, 7] * 10)
    options = {"source": "parquet", "train_files": f"{tmp_path}/x.parquet"}
    _, about = _build(tmp_path, **options)
    assert (about["classes"], about["named"]) == (["3", "7"], False)
    _, about = _build(tmp_path, **options, class_names=["ant", "fly"])
    assert about["classes"] == ["ant", "fly"] and "named" not in about


def test_parquet_with_plain_bytes_string_labels_and_domains(tmp_path):
    labels = ["fly", "ant"] * 40
    _parquet(tmp_path / "x.parquet", labels, structs=False, style=["ink"] * 20 + ["oil"] * 60)
    store, about = _build(
        tmp_path,
        source="parquet",
        train_files=[f"{tmp_path}/x.parquet"],
        domain_column="style",
        test_fraction=0.2,
    )
    assert about["classes"] == ["ant", "fly"]
    assert store.labels.tolist() == [1, 0] * 40
    assert Counter(store.domains) == {"ink": 20, "oil": 60}
    assert Counter(store.domains[store.test]) == {"ink": 4, "oil": 12}


def test_a_truncated_image_in_parquet_is_named_or_counted(tmp_path):
    path = tmp_path / "x.parquet"
    data = [_png(k) for k in range(20)]
    data[7], data[9] = data[7][:60], None
    pq.write_table(pa.table({"image": data, "label": [0, 1] * 10}), path)
    options = {"source": "parquet", "train_files": str(path)}
    with pytest.raises(FedLoomError, match=r"x.parquet row 7: unreadable image"):
        _build(tmp_path, **options)
    store, about = _build(tmp_path, **options, skip_unreadable=True)
    assert (len(store), about["skipped"]) == (18, 2)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"image_column": "img"}, "no column 'img' .image_column.; did you mean 'image'"),
        ({"label_column": "fine_label"}, "no column 'fine_label' .label_column."),
        ({"image_column": "number"}, "column 'number' holds int64, not encoded images"),
        ({"label_column": "weight"}, r"x.parquet row 0: 0.5 in column 'weight' .label_column."),
        ({"label_column": "gap"}, r"x.parquet row 1: None in column 'gap' .label_column."),
        ({"train_files": "none/*.parquet"}, "train_files: no file matches none/"),
    ],
)
def test_a_parquet_file_that_does_not_fit(options, line, tmp_path):
    path = tmp_path / "x.parquet"
    columns = {"number": [1, 2], "weight": [0.5, 0.5], "gap": [1, None]}
    _parquet(path, [0, 1], **columns)
    with pytest.raises(FedLoomError, match=line):
        _build(tmp_path, **({"source": "parquet", "train_files": str(path)} | options))


def test_labels_without_a_name_and_damaged_files_are_named(tmp_path):
    path = tmp_path / "x.parquet"
    _parquet(path, [0, 1, -1], names=["a", "b"])
    options = {"source": "parquet", "train_files": str(path)}
    with pytest.raises(FedLoomError, match=r"x.parquet row 2: -1 in column 'label'"):
        _build(tmp_path, **options)
    _parquet(path, [0, 1] * 50)
    data = path.read_bytes()
    path.write_bytes(data[:500])
    with pytest.raises(FedLoomError, match=r"x.parquet: not a whole Parquet file"):
        _build(tmp_path, **options)
    path.write_bytes(data[:100] + b"\xff" * 300 + data[400:])
    with pytest.raises(FedLoomError, match=r"x.parquet"):
        _build(tmp_path, **options)


# ---- the store --------------------------------------------------------------------------------


def test_images_are_read_across_chunks_in_any_order(tmp_path, monkeypatch):
    from fedloom.data import store as module

    monkeypatch.setattr(module, "BATCH", 7)
    root = _folder(tmp_path / "root", ["ant", "bee"], count=20)
    store, _ = _build(tmp_path, source="folder", root=str(root))
    everything = np.stack([store.images(np.array(k)) for k in range(40)])
    index = np.random.default_rng(0).integers(0, 40, (3, 5, 2))
    assert (store.images(index) == everything[index]).all()
    assert store.images(np.empty((2, 0), np.int64)).shape == (2, 0, 10, 12, 3)


# ---- what Snakemake compares ------------------------------------------------------------------


def _listing(root):
    return inputs.listing(_spec(source="folder", root=str(root)))


def test_the_listing_changes_with_names_and_sizes_but_not_by_touch(tmp_path):
    root = _folder(tmp_path / "root", ["ant", "bee"])
    known = _listing(root)
    assert known["files"] == 8
    os.utime(root / "ant" / "0.png", (1, 1))
    (root / ".DS_Store").write_text("x")
    assert _listing(root) == known
    (root / "ant" / "0.png").rename(root / "ant" / "9.png")
    renamed = _listing(root)
    assert renamed["files"] == 8
    (root / "ant" / "9.png").write_bytes(b"longer" * 1000)
    grown = _listing(root)
    assert len({x["sha256"] for x in (known, renamed, grown)}) == 3


def test_data_that_is_not_there_can_be_planned(tmp_path):
    assert _listing(tmp_path / "nowhere")["files"] == 0
    parquet = _spec(source="parquet", train_files=f"{tmp_path}/*.parquet")
    assert inputs.listing(parquet)["files"] == 0
    _parquet(tmp_path / "x.parquet", [0, 1])
    assert inputs.listing(parquet)["files"] == 1
    assert inputs.listing(_spec(source="glyphs")) is None
    assert inputs.listing(_spec(source="torchvision", name="M", root="x", download=True)) is None


def test_snakemake_makes_the_store_again_for_other_files_and_not_for_touched_ones(tmp_path):
    root = _folder(tmp_path / "root", ["ant", "bee"])
    text = f"datasets: {{mine: {{source: folder, root: {root}}}}}\nrun: {{datasets: [mine]}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    about = "results/datasets/mine/about.json"

    def snakemake(*options):
        command = [sys.executable, "-m", "snakemake", "-s", ROOT / "Snakefile", "--cores", "1"]
        command += ["--configfile", tmp_path / "mine.yaml", "--directory", tmp_path, *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
        done = subprocess.run(
            [*command, "--", about], capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout + done.stderr

    snakemake()
    facts = json.loads((tmp_path / about).read_text())
    assert facts["images"] == 8
    for file in root.rglob("*.png"):
        file.touch()
    assert "Nothing to be done" in snakemake("-n")
    _save(root / "ant" / "new.png", _noise(3))
    assert "Params have changed" in snakemake("-n")
    snakemake()
    assert json.loads((tmp_path / about).read_text())["images"] == 9
    assert "images: 9/9" in (tmp_path / "results/logs/datasets/mine.log").read_text()
