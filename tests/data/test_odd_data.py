"""Odd data folders: one line that names the file, and never a hang."""

import os
import signal
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedloom.config.datasets import listing
from fedloom.data.pixels import to_pixels
from images_on_disk import build, dataset_spec, image_folder, noise, png, save, write_parquet
from refusals import refused


@pytest.fixture(autouse=True)
def no_hang():
    """Raise an error in a test that waits for a pipe or walks in circles for 20 seconds."""

    def ended(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _folder(tmp_path, **options):
    return build(tmp_path, source="folder", root=str(tmp_path / "root"), **options)


def test_a_path_that_is_too_long(tmp_path):
    long = str(tmp_path / ("x" * 5000))
    assert listing(dataset_spec(source="folder", root=long))["files"] == 0
    with refused("no such folder"):
        build(tmp_path, source="folder", root=long)


@pytest.mark.parametrize("pattern", ["/", "x**y", "a" * 5000])
def test_a_pattern_that_matches_nothing(tmp_path, pattern):
    with refused(pattern[:100]):
        build(tmp_path, source="parquet", train_files=pattern)


@pytest.mark.parametrize("name", ["run [1]", "a*b", "what?"])
def test_a_folder_that_has_the_letters_of_a_pattern_in_its_name(name, tmp_path, monkeypatch):
    write_parquet(tmp_path / name / "x1.parquet", [0, 1] * 5)
    spec = dataset_spec(source="parquet", train_files=str(tmp_path / name / "x*.parquet"))
    assert listing(spec)["files"] == 1 and len(build(tmp_path, **spec)[0]) == 10
    monkeypatch.chdir(tmp_path / name)
    for pattern in ("*.parquet", "x[0-9].parquet", str(tmp_path / "*" / "x1.parquet")):
        assert len(build(tmp_path, source="parquet", train_files=pattern)[0]) == 10


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere.png")])
def test_a_pipe_and_a_dangling_link_are_images_that_cannot_be_read(tmp_path, make):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    make(root / "bee" / "gone.png")
    assert listing(dataset_spec(source="folder", root=str(root)))["files"] == 8
    with refused("root/bee/gone.png: unreadable image"):
        _folder(tmp_path)
    store, about = _folder(tmp_path, skip_unreadable=True)
    assert (len(store), about["skipped"]) == (8, 1)


@pytest.mark.parametrize("kind", ["pipe", "folder", "circle"])
def test_a_parquet_file_that_is_none(tmp_path, kind):
    path = tmp_path / "x.parquet"
    {"pipe": os.mkfifo, "folder": Path.mkdir, "circle": lambda p: p.symlink_to(p)}[kind](path)
    spec = dataset_spec(source="parquet", train_files=str(tmp_path / "*.parquet"))
    assert listing(spec)["files"] == 0
    with refused("x.parquet", "train_files"):
        build(tmp_path, **spec)


@pytest.mark.parametrize(
    ("link", "target", "word"),
    [
        ("ant/up", ".", "ant/up"),
        ("ant/up", "../..", "link"),
        ("ant/self", "self", "ant/self"),
        ("cow", "bee", None),
    ],
)
def test_links_in_circles(tmp_path, link, target, word):
    """Two links that lead in circles would double the files at every level."""
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    for name in (link, f"{link}2"):
        (root / name).symlink_to(target if target != "self" else (root / name).name)
    spec = dataset_spec(source="folder", root=str(root))
    if word is None:  # a link to a folder elsewhere is followed
        assert listing(spec)["files"] == len(_folder(tmp_path)[0]) == 16
        return
    with refused(word):
        listing(spec)
    with refused(word):
        _folder(tmp_path)


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\nb", b"\x1b[31m"])
def test_class_names_that_are_not_text(tmp_path, name):
    root = image_folder(tmp_path / "root", ["ant"])
    save(root / os.fsdecode(name) / "x.png", noise(5))
    with refused("class", "UTF-8"):
        _folder(tmp_path)
    assert listing(dataset_spec(source="folder", root=str(root)))["files"] == 5


def test_file_names_that_are_not_text_are_read_and_shown_escaped(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    file = (root / "ant" / "0.png").rename(root / "ant" / os.fsdecode(b"caf\xe9.png"))
    assert len(_folder(tmp_path)[0]) == 8
    _spoil(file)
    with refused(r"ant/caf\udce9.png': unreadable image"):
        _folder(tmp_path)


def test_class_names_of_torchvision_that_are_not_text(tmp_path):
    root = tmp_path / "root"
    image_folder(root / "eurosat" / "2750", ["AnnualCrop", "Forest"])
    folder = root / "eurosat" / "2750"
    (folder / "Forest").rename(folder / os.fsdecode(b"For\xeat"))
    with refused(r"'For\udceat'", "class_names"):
        build(tmp_path, source="torchvision", name="EuroSAT", root=str(root))


def test_labels_in_parquet_that_are_not_text(tmp_path):
    raw = pa.array([b"ant", b"caf\xe9"]).cast(pa.binary())
    labels = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": [png(0), png(1)], "label": labels}), path)
    with refused("x.parquet", "utf-8"):
        build(tmp_path, source="parquet", train_files=str(path))


@pytest.mark.parametrize(
    ("about", "word"),
    [
        ("{", "JSONDecodeError"),
        ("\xff", "UnicodeDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError"),
        ("[" * 100_000, "RecursionError"),
        ('{"info": {"features": ["label"]}}', "AttributeError"),
        ('{"info": {"features": {"label": null}}}', "AttributeError"),
        ('{"info": {"features": {"label": {"names": [1, 2]}}}}', "list of text"),
        ('{"info": {"features": {"label": {"names": "ab"}}}}', "list of text"),
        ('{"info": {"features": {"label": {"names": {"0": "ant"}}}}}', "list of text"),
        ('{"info": {"features": {"label": {"names": 2}}}}', "TypeError"),
    ],
)
def test_metadata_of_hugging_face_that_is_not_theirs(tmp_path, about, word):
    path = tmp_path / "x.parquet"
    write_parquet(path, [0, 1] * 5)
    table = pq.read_table(path).replace_schema_metadata({"huggingface": about.encode("latin-1")})
    pq.write_table(table, path)
    with refused("x.parquet", "Hugging Face", word):
        build(tmp_path, source="parquet", train_files=str(path))
    assert not (tmp_path / "images.arrow").exists()


def _spoil(*files):
    for file in files:
        file.write_bytes(file.read_bytes()[:20])


def test_an_image_size_without_bounds():
    with refused("image_size", "100000", "4096"):
        dataset_spec(source="folder", root="x", image_size=100_000)


def _chunk(kind, data):
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


HEAD = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
BOMB = _chunk(b"IHDR", HEAD) + _chunk(b"IDAT", zlib.compress(bytes(100))) + _chunk(b"IEND", b"")
TEXT = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2 << 20)))
SMALL = png(0)


@pytest.mark.parametrize(
    ("data", "word"),
    [(SMALL[:8] + BOMB, "3600000000"), (SMALL[:33] + TEXT + SMALL[33:], "too large")],
)
def test_a_decompression_bomb(tmp_path, data, word):
    """An image of a few bytes may claim to be large, and so may a text within an image."""
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    (root / "ant" / "1.png").write_bytes(data)
    with refused("ant/1.png: unreadable image", word):
        _folder(tmp_path)
    assert _folder(tmp_path, skip_unreadable=True)[1]["skipped"] == 1


def test_an_image_without_pixels():
    with pytest.raises(ValueError, match="the image has no pixels"):
        to_pixels(Image.new("L", (0, 5)), False, 8)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".tiff", ".webp", ".blp"])
def test_damage_anywhere_in_an_image(tmp_path, suffix, monkeypatch):
    """Decoders raise all kinds of errors; each damaged image is skipped, or gives pixels."""
    root = image_folder(tmp_path / "root", ["ant", "bee"], count=60, suffix=".png")
    rng = np.random.default_rng(0)
    mode = "P" if suffix == ".blp" else "RGB"
    save(tmp_path / f"x{suffix}", noise(0).convert(mode))
    whole = (tmp_path / f"x{suffix}").read_bytes()
    for k in range(1, 60):
        data = bytearray(whole)
        for place in rng.integers(0, min(len(data), rng.choice([40, 400])), rng.integers(1, 5)):
            data[place] = rng.integers(256)
        (root / "ant" / f"{k}.png").unlink()
        (root / "ant" / f"{k}{suffix}").write_bytes(data)
    store, about = _folder(tmp_path, skip_unreadable=True, image_size=8)
    assert len(store) + about["skipped"] == 120
    assert about["skipped"] > 0
