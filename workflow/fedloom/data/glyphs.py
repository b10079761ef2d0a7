"""Draw Unicode characters with the fonts that matplotlib ships: images without a download.

Two disjoint sets of classes come out of one pool. *Source* classes only ever pretrain the micro
backbones; *target* classes are the dataset `glyphs`, whose domains are four font families (each
with a regular, a bold and an italic face), or styles of drawing. `workflow/pretraining` chose the
classes. Digits are in neither set.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from PIL import Image, ImageFont

from fedloom.common.checkout import ROOT
from fedloom.common.io import read_json
from fedloom.common.seeds import numpy_generator

# source and target characters, as pretraining.glyph_classes chose them
CLASSES: dict[str, str] = read_json(ROOT / "workflow/resources/glyph_classes.json")
SIZE = 32  # pixels of a side of the canvas
FILL = 0.8  # the longer side of a glyph, as a share of the canvas
_EM = 64  # px at which a face is rasterised before it is fitted into its box
TURN = 45  # degrees, each way
NOISE = 60  # deviation, of 255
COVER = 10  # side of the square that hides a part, in pixels of 32

# face -> (family, file). The family is the domain.
_FACES = {
    "DejaVu Sans": ("DejaVu Sans", "DejaVuSans"),
    "DejaVu Sans Bold": ("DejaVu Sans", "DejaVuSans-Bold"),
    "DejaVu Sans Oblique": ("DejaVu Sans", "DejaVuSans-Oblique"),
    "DejaVu Sans Mono": ("DejaVu Sans Mono", "DejaVuSansMono"),
    "DejaVu Sans Mono Bold": ("DejaVu Sans Mono", "DejaVuSansMono-Bold"),
    "DejaVu Sans Mono Oblique": ("DejaVu Sans Mono", "DejaVuSansMono-Oblique"),
    "DejaVu Serif": ("DejaVu Serif", "DejaVuSerif"),
    "DejaVu Serif Bold": ("DejaVu Serif", "DejaVuSerif-Bold"),
    "DejaVu Serif Italic": ("DejaVu Serif", "DejaVuSerif-Italic"),
    "STIX": ("STIX", "STIXGeneral"),
    "STIX Bold": ("STIX", "STIXGeneralBol"),
    "STIX Italic": ("STIX", "STIXGeneralItalic"),
}


@dataclass(frozen=True, order=True)
class Glyph:
    """One class: a character."""

    char: str

    @property
    def name(self) -> str:
        """Return its Unicode name, lower case."""
        return unicodedata.name(self.char).lower()


def faces() -> dict[str, str]:
    """Return the font family (domain) of each of the twelve faces, in a fixed order."""
    return {face: family for face, (family, _) in _FACES.items()}


def has(glyph: Glyph, face: str) -> bool:
    """Return True if the font of `face` has a glyph for the character."""
    return ord(glyph.char) in codes(face)


def draw(glyph: Glyph, face: str, affine: Sequence[Sequence[float]] | None = None) -> np.ndarray:
    """Draw a glyph in white on black, uint8 [32, 32], its longer side `FILL` of the canvas.

    Args:
        affine: matrix [2, 3] from output to input positions, both in [-1, 1] from edge to edge as
            in `torch.nn.functional.affine_grid`.
    """
    if not has(glyph, face):
        raise ValueError(f"{face} has no glyph for U+{ord(glyph.char):04X}")
    canvas = Image.new("L", (2 * SIZE, 2 * SIZE))  # twice the size, against jaggedness
    ink: Any = _font(face).getmask(glyph.char, "L")  # Pillow's annotation lacks that it gives bytes
    cut = Image.frombytes("L", ink.size, bytes(ink))
    box = cut.getbbox()
    if box is not None:
        cut = cut.crop(box)
        scale = FILL * 2 * SIZE / max(cut.size)
        width, height = (max(1, round(scale * side)) for side in cut.size)
        cut = cut.resize((width, height), Image.Resampling.BILINEAR)
        canvas.paste(cut, ((2 * SIZE - width) // 2, (2 * SIZE - height) // 2))
    if affine is not None:
        (a, b, c), (d, e, f) = affine
        half = float(SIZE)  # Pillow counts pixels from the corner
        canvas = canvas.transform(
            canvas.size,
            Image.Transform.AFFINE,
            (a, b, half * (1 - a - b + c), d, e, half * (1 - d - e + f)),
            Image.Resampling.BILINEAR,
        )
    return np.asarray(canvas.reduce(2))


def classes(split: str, limit: int | None = None) -> list[Glyph]:
    """Return the first `limit` classes, or all, of the split source or target, in a fixed order."""
    return [Glyph(char) for char in CLASSES[split][:limit]]


def render_set(
    glyphs: Sequence[Glyph],
    draws: int = 1,
    seed: int = 0,
    noise: float = 1.0,
    only: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Draw every glyph `draws` times in each face that has it (or each of the faces `only`).

    Images are ordered by class, face and draw. The jitter of a class depends on its character and
    `seed` alone, not on the other classes.

    Args:
        noise: scales the affine jitter; 1 is mild (turns up to 8 degrees, sizes by 10%, shear 0.1,
            shifts by 6% of the canvas), 0 is none.

    Returns:
        Images uint8 [N, 32, 32, 1]; labels int64 [N], positions in `glyphs`; the face of each
        image, str [N], whose domain is `faces()[face]`; and the classes' names.
    """
    images, labels, where = [], [], []
    for label, glyph in enumerate(glyphs):
        rng = np.random.default_rng([seed, ord(glyph.char)])
        jitter = jitters(rng, len(_FACES) * draws, noise).reshape(len(_FACES), draws, 2, 3)
        for index, face in enumerate(_FACES):
            if (only is not None and face not in only) or not has(glyph, face):
                continue
            images += [draw(glyph, face, affine=matrix) for matrix in jitter[index]]
            labels += [label] * draws
            where += [face] * draws
    return (
        np.stack(images)[..., None],
        np.array(labels, np.int64),
        np.array(where),
        [glyph.name for glyph in glyphs],
    )


def jitters(rng: np.random.Generator, count: int, noise: float = 1.0) -> np.ndarray:
    """Draw mild affine matrices for `draw`, float64 [count, 2, 3]."""
    unit = rng.uniform(-1, 1, (count, 6)) * noise
    turn = np.deg2rad(8) * unit[:, 0]
    width, height = 1 / (1 + 0.1 * unit[:, 1]), 1 / (1 + 0.1 * unit[:, 2])
    shear = 0.1 * unit[:, 3]
    cos, sin = np.cos(turn), np.sin(turn)
    rows = [
        [width * cos, width * (shear * cos - sin), 0.12 * unit[:, 4]],
        [height * sin, height * (shear * sin + cos), 0.12 * unit[:, 5]],
    ]
    return np.stack([np.stack(row, -1) for row in rows], 1)


@cache
def _path(face: str) -> Path:
    import matplotlib  # late: takes a moment, and only its folder is needed

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{_FACES[face][1]}.ttf"


@cache
def codes(face: str) -> frozenset[int]:
    """Return the code points that the font of a face has glyphs for."""
    from fontTools.ttLib import TTFont

    with TTFont(_path(face), lazy=True) as font:
        table = font.getBestCmap() or {}  # code point -> name of the glyph
        return frozenset(code for code, name in table.items() if name != ".notdef")


@cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    # the basic layout draws one code point as it is, whether or not raqm is installed
    return ImageFont.truetype(_path(face), _EM, layout_engine=ImageFont.Layout.BASIC)


def restyled(images: np.ndarray, style: str, code: int) -> np.ndarray:
    """Draw a class's images, uint8 [N, H, W], in a style; `code` seeds the random numbers."""
    rng = numpy_generator(0, f"glyph style {style}", code)
    return np.stack([_in_style(image, style, rng) for image in images])


def _in_style(image: np.ndarray, style: str, rng: np.random.Generator) -> np.ndarray:
    """Return an image, uint8 [H, W], in a style."""
    match style:
        case "outline":
            return scipy.ndimage.morphological_gradient(image, size=3)
        case "inverted":
            return 255 - image
        case "turned":
            angle = rng.uniform(-TURN, TURN)
            return np.asarray(Image.fromarray(image).rotate(angle, Image.Resampling.BILINEAR))
        case "noisy":
            noise = rng.normal(0, NOISE, image.shape)
            return (image + noise).round().clip(0, 255).astype(np.uint8)
        case "covered":
            top, left = rng.integers(0, np.array(image.shape) - COVER + 1)
            image = image.copy()
            image[top : top + COVER, left : left + COVER] = 0
    return image
