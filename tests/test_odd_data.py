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

from fedloom.common.errors import FedLoomError
from fedloom.config.file_fingerprint import listing
from fedloom.data.images import to_pixels
from images_on_disk import build, dataset_spec, image_folder, noise, png, save, write_parquet


@pytest.fixture(autouse=True)
def no_hang():
    """Whatever waits for a pipe, or walks in circles, is ended."""

    def ended(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _complaint(function, *args, **kwargs):
    with pytest.raises(FedLoomError) as error:
        function(*args, **kwargs)
    line = str(error.value)
    assert line.isprintable(), "one line, of characters that a log can show"
    return line


def _folder(tmp_path, **options):
    return build(tmp_path, source="folder", root=str(tmp_path / "root"), **options)


@pytest.mark.parametrize("source", ["folder", "torchvision", "parquet"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~no_such_user_here/images", "~no_such_user_here/images: no such user"),
        ("im\0ages", r"'im\\x00ages': a path cannot hold the character NUL"),
    ],
)
def test_a_path_that_is_none(tmp_path, source, path, words):
    keys = {"torchvision": {"name": "EuroSAT", "root": path}, "parquet": {"train_files": path}}
    spec = dataset_spec(source=source, **keys.get(source, {"root": path}))
    assert words.replace("\\\\", "\\") in _complaint(listing, spec)
    assert words.replace("\\\\", "\\") in _complaint(build, tmp_path, **spec)


def test_a_path_that_is_too_long(tmp_path):
    long = str(tmp_path / ("x" * 5000))
    assert listing(dataset_spec(source="folder", root=long))["files"] == 0
    assert "no such folder" in _complaint(build, tmp_path, source="folder", root=long)


@pytest.mark.parametrize("pattern", ["/", "x**y", "a" * 5000])
def test_a_pattern_that_matches_nothing(tmp_path, pattern):
    line = _complaint(build, tmp_path, source="parquet", train_files=pattern)
    assert "no pattern of files" in line or "no file matches" in line or "a folder" in line


def test_a_pipe_among_images(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    os.mkfifo(root / "bee" / "pipe.png")
    assert listing(dataset_spec(source="folder", root=str(root)))["files"] == 8
    line = _complaint(_folder, tmp_path)
    assert "root/bee/pipe.png: unreadable image (must be a regular file" in line
    store, about = _folder(tmp_path, skip_unreadable=True)
    assert (len(store), about["skipped"]) == (8, 1)


def test_a_pipe_for_torchvision(tmp_path):
    root = tmp_path / "root"
    image_folder(root / "eurosat" / "2750", ["AnnualCrop", "Forest"])
    os.mkfifo(root / "eurosat" / "2750" / "Forest" / "pipe.jpg")
    line = _complaint(build, tmp_path, source="torchvision", name="EuroSAT", root=str(root))
    assert "Forest/pipe.jpg: a pipe, socket or device, no file; remove it" in line


@pytest.mark.parametrize("kind", ["pipe", "folder", "circle"])
def test_a_parquet_file_that_is_none(tmp_path, kind):
    path = tmp_path / "x.parquet"
    {"pipe": os.mkfifo, "folder": Path.mkdir, "circle": lambda p: p.symlink_to(p)}[kind](path)
    spec = dataset_spec(source="parquet", train_files=str(tmp_path / "*.parquet"))
    assert listing(spec)["files"] == 0
    line = _complaint(build, tmp_path, **spec)
    assert "x.parquet: a folder, pipe or broken link, no Parquet file (train_files)" in line


@pytest.mark.parametrize(
    ("link", "target", "words"),
    [
        ("ant/up", ".", "ant/up: a link that leads back up"),
        ("ant/up", "../..", ": a link that leads back up"),
        ("ant/self", "self", "ant/self: cannot be listed (Too many levels of symbolic links)"),
        ("cow", "bee", None),
    ],
)
def test_links_in_circles(tmp_path, link, target, words):
    """Two of them would double what is read at every level."""
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    for name in (link, f"{link}2"):
        (root / name).symlink_to(target if target != "self" else (root / name).name)
    spec = dataset_spec(source="folder", root=str(root))
    if words is None:  # a link to a folder elsewhere is followed
        assert listing(spec)["files"] == len(_folder(tmp_path)[0]) == 16
        return
    for line in (_complaint(listing, spec), _complaint(_folder, tmp_path)):
        assert words in line


def test_a_dangling_link_is_an_image_that_cannot_be_read(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    (root / "ant" / "gone.png").symlink_to("nowhere.png")
    assert listing(dataset_spec(source="folder", root=str(root)))["files"] == 8
    assert "ant/gone.png: unreadable image" in _complaint(_folder, tmp_path)
    assert len(_folder(tmp_path, skip_unreadable=True)[0]) == 8


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\nb", b"\x1b[31m"])
def test_class_names_that_are_not_text(tmp_path, name):
    root = image_folder(tmp_path / "root", ["ant"])
    save(root / os.fsdecode(name) / "x.png", noise(5))
    line = _complaint(_folder, tmp_path)
    assert "names a class or domain but is not UTF-8 text; rename it" in line
    assert listing(dataset_spec(source="folder", root=str(root)))["files"] == 5


def test_file_names_that_are_not_text_are_read_and_shown_escaped(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    file = (root / "ant" / "0.png").rename(root / "ant" / os.fsdecode(b"caf\xe9.png"))
    assert len(_folder(tmp_path)[0]) == 8
    _spoil(file)
    assert r"ant/caf\udce9.png': unreadable image" in _complaint(_folder, tmp_path)


def test_class_names_of_torchvision_that_are_not_text(tmp_path):
    root = tmp_path / "root"
    image_folder(root / "eurosat" / "2750", ["AnnualCrop", "Forest"])
    folder = root / "eurosat" / "2750"
    (folder / "Forest").rename(folder / os.fsdecode(b"For\xeat"))
    line = _complaint(build, tmp_path, source="torchvision", name="EuroSAT", root=str(root))
    assert r"class 'For\udceat': a name that is not UTF-8 text; set class_names" in line


def test_labels_in_parquet_that_are_not_text(tmp_path):
    raw = pa.array([b"ant", b"caf\xe9"]).cast(pa.binary())
    labels = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": [png(0), png(1)], "label": labels}), path)
    line = _complaint(build, tmp_path, source="parquet", train_files=str(path))
    assert "x.parquet: column 'label' is not UTF-8 text" in line


NOT_JSON = "x.parquet: metadata of Hugging Face that is not JSON"
NOT_THEIRS = "x.parquet: metadata of Hugging Face without info.features by column"
NO_LIST = "x.parquet: the names of column 'label' in its metadata are no list of text"


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ("{", NOT_JSON),
        ("", NOT_JSON),
        ("\xff", NOT_JSON),
        ("[" * 100_000, NOT_JSON),
        ("[]", NOT_THEIRS),
        ("5", NOT_THEIRS),
        ("{}", NOT_THEIRS),
        ('{"info": null}', NOT_THEIRS),
        ('{"info": {"features": ["label"]}}', NOT_THEIRS),
        ('{"info": {"features": {"label": "ClassLabel"}}}', NOT_THEIRS),
        ('{"info": {"features": {"label": {"names": [1, 2]}}}}', NO_LIST),
        ('{"info": {"features": {"label": {"names": "ab"}}}}', NO_LIST),
        ('{"info": {"features": {"label": {"names": {"0": "ant", "1": "bee"}}}}}', NO_LIST),
        ('{"info": {"features": {"label": {"names": 2}}}}', NO_LIST),
    ],
)
def test_metadata_of_hugging_face_that_is_not_theirs(tmp_path, about, words):
    path = tmp_path / "x.parquet"
    write_parquet(path, [0, 1] * 5)
    table = pq.read_table(path).replace_schema_metadata({"huggingface": about.encode("latin-1")})
    pq.write_table(table, path)
    line = _complaint(build, tmp_path, source="parquet", train_files=str(path))
    assert words in line
    assert line.endswith("; write the file again without it, and set class_names")
    assert not (tmp_path / "images.arrow").exists()


def _spoil(*files):
    for file in files:
        file.write_bytes(file.read_bytes()[:20])


def test_a_class_of_which_no_image_can_be_read(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee", "cow"])
    _spoil(*(root / "bee").iterdir())
    line = _complaint(_folder, tmp_path, skip_unreadable=True)
    assert line.startswith("class 'bee': none of its images can be read, among them ")
    assert "root/bee/0.png" in line
    save(root / "bee" / "0.png", noise(3))
    save(root / "bee" / "1.png", noise(4))
    save(root / "bee" / "2.png", noise(5))
    assert _folder(tmp_path, skip_unreadable=True)[1]["skipped"] == 1


def test_a_class_of_which_no_training_image_can_be_read(tmp_path):
    root = image_folder(tmp_path / "root", ["train", "test"], ["ant", "bee"])
    _spoil(*(root / "train" / "bee").iterdir())
    line = _complaint(_folder, tmp_path, skip_unreadable=True)
    assert line.startswith("class 'bee': none of its training images can be read")
    image_folder(root, ["train", "test"], ["ant", "bee"])
    _spoil(*(root / "test" / "bee").iterdir())  # it is trained on, if not tested
    assert _folder(tmp_path, skip_unreadable=True)[1]["skipped"] == 4
    image_folder(root, ["test"], ["ant", "bee", "cow"])
    _spoil(root / "test" / "cow" / "0.png")  # it never had training images
    assert _folder(tmp_path, skip_unreadable=True)[1]["skipped"] == 1


def test_the_same_in_parquet_where_a_class_may_have_no_image_at_all(tmp_path):
    path = tmp_path / "x.parquet"
    names = ["ant", "bee", "cow"]
    write_parquet(path, [0, 1] * 6, names=names)
    table = pq.read_table(path)
    images = table["image"].to_pylist()
    for spoilt, words in (
        (range(1, 3), None),
        (range(1, 12, 2), "class 'bee': none of its images"),
    ):
        damaged = [
            {"bytes": b"x"} if k in spoilt else {"bytes": i["bytes"]} for k, i in enumerate(images)
        ]
        pq.write_table(table.set_column(0, "image", pa.array(damaged)), path)
        options = {"source": "parquet", "train_files": str(path), "skip_unreadable": True}
        if words is None:
            assert build(tmp_path, **options)[1]["classes"] == names
        else:
            assert words in _complaint(build, tmp_path, **options)


def test_the_same_in_torchvision(tmp_path):
    root = tmp_path / "root"
    folder = image_folder(root / "eurosat" / "2750", ["AnnualCrop", "Forest"])
    _spoil(*(folder / "Forest").iterdir())
    options = {"source": "torchvision", "name": "EuroSAT", "root": str(root)}
    line = _complaint(build, tmp_path, **options, skip_unreadable=True)
    assert line.startswith("class 'Forest': none of its images can be read")


def test_an_image_size_without_bounds():
    line = _complaint(dataset_spec, source="folder", root="x", image_size=100_000)
    assert "image_size: 100000 is greater than the maximum of 4096" in line


def _bomb(width, height):
    """A PNG of a few bytes that claims to be large."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(100))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def test_a_decompression_bomb(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    (root / "ant" / "1.png").write_bytes(_bomb(60_000, 60_000))
    line = _complaint(_folder, tmp_path)
    assert "ant/1.png: unreadable image (Image size (3600000000 pixels) exceeds limit" in line
    assert _folder(tmp_path, skip_unreadable=True)[1]["skipped"] == 1


def test_a_text_in_an_image_that_is_a_bomb(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    text = b"zTXt" + b"Comment\0\0" + zlib.compress(bytes(100 << 20))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    data = (root / "ant" / "1.png").read_bytes()
    (root / "ant" / "1.png").write_bytes(data[:33] + chunk + data[33:])
    assert "ant/1.png: unreadable image (Decompressed data too large" in _complaint(
        _folder, tmp_path
    )


def test_an_image_that_resizing_would_blow_up(tmp_path):
    """One pixel wide: its shorter side would become 4,096, the other millions."""
    with pytest.raises(ValueError, match="would be resized to 4096 x 245760000"):
        to_pixels(Image.new("L", (1, 60_000)), False, 4096)
    with pytest.raises(ValueError, match="it has no pixels"):
        to_pixels(Image.new("L", (0, 5)), False, 8)
    assert to_pixels(Image.new("L", (1, 600)), False, 64).shape == (64, 64, 1)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".tiff", ".webp", ".avif", ".blp"])
def test_damage_anywhere_in_an_image(tmp_path, suffix, monkeypatch):
    """Decoders raise what they like; each image is one line, or pixels."""
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
