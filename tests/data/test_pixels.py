"""How an image of a file becomes the pixels of a store."""

import io
import logging
import stat
import struct
import subprocess

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from PIL.ExifTags import Base

from fedloom.data import pixels
from fedloom.data.pixels import decode_image, to_pixels
from images_on_disk import build, image_folder, noise, save
from refusals import refused

# how a viewer shows an image [H, W, 3] of every orientation in EXIF
SHOWN = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: x.transpose(1, 0, 2)[:, ::-1],
    7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
    8: lambda x: x.transpose(1, 0, 2)[::-1],
}


def stored(image, kind, **options):
    """Return the image as it is read from a file of this format."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return decode_image(io.BytesIO(stream.getvalue()))


@pytest.mark.parametrize("size", [None, 8, 24])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "PPM"])
def test_ordinary_images_are_what_pillow_makes_of_them(kind, size):
    """Pillow converts, resizes and cuts the image to the same bits."""
    image = stored(noise(0, (30, 20)), kind)
    expected = image.convert("RGB")
    if size is not None:
        wide = size * 30 // 20
        left = round((wide - size) / 2)
        expected = expected.resize((wide, size), Image.Resampling.BICUBIC)
        expected = expected.crop((left, 0, left + size, size))
    assert (to_pixels(image, False, size) == np.asarray(expected)).all()


def test_an_image_of_usual_size_is_resized_before_it_is_cut():
    """Pixels are equal to the bit; if it were cut first, two values would round otherwise."""
    image = noise(0, (200, 7))
    expected = image.resize((685, 24), Image.Resampling.BICUBIC).crop((330, 0, 354, 24))
    assert (to_pixels(image, False, 24) == np.asarray(expected)).all()


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_images_are_turned_as_their_exif_says(kind, orientation):
    exif = Image.Exif()
    exif[Base.Orientation] = orientation
    lossless = {"lossless": True} if kind == "WEBP" else {}
    image = stored(noise(0), kind, exif=exif, **lossless)
    assert (to_pixels(image, False, None) == SHOWN[orientation](np.asarray(noise(0)))).all()


def test_a_damaged_exif_turns_nothing():
    stream = io.BytesIO()
    noise(0).save(stream, "PNG", exif=b"Exif\0\0no TIFF header")
    with pytest.raises(SyntaxError):
        decode_image(io.BytesIO(stream.getvalue())).getexif()
    image = decode_image(io.BytesIO(stream.getvalue()))
    assert (to_pixels(image, False, None) == np.asarray(noise(0))).all()


def test_an_image_is_turned_though_another_tag_of_its_exif_is_damaged():
    """The resolution is the text "72", so that Pillow cannot write the tags again."""
    # types of tags
    text = 2
    short = 3
    orientation = struct.pack(">HHIHxx", Base.Orientation, short, 1, 6)
    resolution = struct.pack(">HHI4s", Base.XResolution, text, 2, b"72")
    header = struct.pack(">2sHIH", b"MM", 42, 8, 2)
    exif = b"Exif\0\0" + header + orientation + resolution + bytes(4)
    image = stored(noise(0), "PNG", exif=exif)
    with pytest.raises(TypeError):
        image.getexif().tobytes()
    assert (to_pixels(image, False, None) == SHOWN[6](np.asarray(noise(0)))).all()


def test_scans_of_twelve_bits_keep_their_levels():
    scan = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    for kind in ("PNG", "TIFF"):
        shades = to_pixels(stored(Image.fromarray(scan), kind), False, None, grey_bits=12)
        assert (shades[..., 0] == scan // 16).all()
    with pytest.raises(ValueError, match="a grey of 4095 has more than 11 bits"):
        to_pixels(Image.fromarray(scan), False, None, grey_bits=11)


def test_images_of_sixteen_bits_that_use_few_of_them_are_refused(tmp_path):
    """Only the whole dataset shows how many bits count, since any single image may be dark."""
    rng = np.random.default_rng(0)
    root = tmp_path / "root"
    keys = {"source": "folder", "root": str(tmp_path / "root")}
    for name in ("ant/1", "ant/2", "bee/1", "bee/2"):
        grey = rng.integers(0, 4000, (8, 8), np.uint16)
        save(root / f"{name}.png", Image.fromarray(grey))
    with refused("ant/1.png", "16-bit", "grey_bits: 12"):
        build(tmp_path, **keys)
    store, _ = build(tmp_path, **keys, grey_bits=12)
    assert store.images(np.arange(4)).max() > 200
    store, _ = build(tmp_path, **keys, grey_bits=16)
    assert store.images(np.arange(4)).max() == 15
    save(root / "ant/1.png", Image.fromarray(np.full((8, 8), 40_000, np.uint16)))
    store, _ = build(tmp_path, **keys)
    assert store.images(np.arange(4)).max() == 40_000 >> 8


CLEAR = Image.fromarray(np.array([[[10, 20, 30, 0], [40, 50, 60, 255], [70, 80, 90, 128]]], "u1"))


@pytest.mark.parametrize(
    ("transparency", "shown"),
    [
        ("ignore", [[10, 20, 30], [40, 50, 60], [70, 80, 90]]),
        ("white", [[255, 255, 255], [40, 50, 60], [162, 167, 172]]),
        ("black", [[0, 0, 0], [40, 50, 60], [35, 40, 45]]),
    ],
)
def test_a_key_says_what_is_behind_transparent_pixels(transparency, shown):
    seen = to_pixels(stored(CLEAR, "PNG"), False, None, transparency=transparency)
    assert np.abs(seen[0].astype(int) - shown).max() <= 1


def test_transparent_grey_and_palettes():
    grey = Image.fromarray(np.array([[[9, 0], [9, 255]]], np.uint8), "LA")
    seen = to_pixels(stored(grey, "PNG"), False, None, transparency="white")
    assert seen.tolist() == [[[255], [9]]], "grey stays grey"
    palette = CLEAR.convert("P")
    image = stored(palette, "PNG", transparency=palette.getpixel((0, 0)))
    assert to_pixels(image, False, None, transparency="white")[0, 0].tolist() == [255] * 3


def test_a_palette_with_transparent_colours_is_read_without_a_warning(recwarn):
    """The hidden colours are those of the palette: here, colour k has a red of k."""
    palette = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).convert("P")
    colours = []
    for red in range(256):
        colours += [red, 7, 9]
    palette.putpalette(colours)
    image = stored(palette, "PNG", transparency=bytes([0, 100, 255, 3]))
    assert image.mode == "P" and isinstance(image.info["transparency"], bytes)
    expected = np.stack([np.arange(16), np.full(16, 7), np.full(16, 9)], axis=-1)
    assert (to_pixels(image, False, None) == expected.reshape(4, 4, 3)).all()
    assert pixels.is_transparent(image)
    assert not recwarn.list


def test_transparent_pixels_are_counted_unless_a_key_is_set(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    opaque = noise(3).convert("RGBA")
    save(root / "ant/1.png", opaque)
    clear = opaque.copy()
    clear.putpixel((0, 0), (0, 0, 0, 0))
    save(root / "bee/1.png", clear)
    build(tmp_path, source="folder", root=str(root))
    assert "1 of 8 images have transparent pixels" in caplog.text
    assert "bee/1.png" in caplog.text
    caplog.clear()
    store, _ = build(tmp_path, source="folder", root=str(root), transparency="white")
    assert "transparent" not in caplog.text
    assert store.images(np.array([5]))[0, 0, 0].tolist() == [255] * 3


@pytest.fixture
def ghostscript(tmp_path, monkeypatch):
    """Write a program `gs` that leaves a file behind when it is run, and return that file."""
    ran = tmp_path / "ran"
    program = tmp_path / "bin/gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho $* >> {ran}\necho 10.0\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    subprocess.run(["gs", "--version"], check=True, capture_output=True)
    ran.unlink()
    return ran


@pytest.mark.parametrize("by", ["folder", "parquet", "torchvision"])
def test_postscript_is_not_run_whatever_it_is_called(by, tmp_path, ghostscript, monkeypatch):
    """Pillow hands EPS images to Ghostscript, which runs the program that such a file is."""
    if by != "torchvision":  # these sources do not even try EPS
        monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "x.png").write_bytes(program)
    with pytest.raises(OSError, match=r"identify|Ghostscript"):
        if by == "folder":
            decode_image(str(tmp_path / "x.png"))
        elif by == "parquet":
            decode_image(io.BytesIO(program))
        else:  # torchvision's loader tries every format
            Image.open(tmp_path / "x.png").load()
    assert not ghostscript.exists()


def test_an_image_that_is_no_raster_is_one_line(tmp_path):
    root = image_folder(tmp_path / "root", ["ant", "bee"])
    noise(0).save(tmp_path / "x.eps", "EPS")
    (root / "ant/1.png").write_bytes((tmp_path / "x.eps").read_bytes())
    with refused("ant/1.png: unreadable image"):
        build(tmp_path, source="folder", root=str(root))


@pytest.mark.parametrize("size", [(65_500, 1), (1, 65_500), (60_000, 7)])
def test_an_image_that_is_long_and_narrow_takes_no_memory(size, monkeypatch):
    """If it were resized before it is cut, an image of 109 bytes would take gigabytes."""
    resize = Image.Image.resize

    def bounded(image, shape, *more):
        assert shape == (224, 224)
        return resize(image, shape, *more)

    monkeypatch.setattr(Image.Image, "resize", bounded)
    assert to_pixels(Image.new("RGB", size, "red"), False, 224).shape == (224, 224, 3)


@pytest.mark.parametrize("size", [(30, 20), (20, 30), (200, 7), (23, 17), (12, 12), (3, 90)])
def test_what_is_cut_first_is_what_is_cut_last(size, monkeypatch):
    """The pixels agree up to rounding; low contrast keeps all values between 0 and 255."""
    image = noise(0, size).point(lambda value: 100 + value // 5)
    last = to_pixels(image, False, 16).astype(int)
    monkeypatch.setattr(pixels, "LARGEST", 0)
    first = to_pixels(image, False, 16).astype(int)
    assert np.abs(first - last).max() <= 1
