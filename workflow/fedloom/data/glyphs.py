"""Draw Unicode characters with the fonts that matplotlib ships: images without a download.

Two disjoint sets of classes come out of one pool. *Source* classes only ever pretrain the micro
backbones; *target* classes are the dataset `glyphs`, whose domains are four font families (each
with a regular, a bold and an italic face). How the split is made:

1. Pool: characters that every face of DejaVu Sans and DejaVu Serif maps to a glyph (the fonts'
   cmaps are asked, so no "missing glyph" box is ever drawn). Marks, spaces and control
   characters are left out, and so are box drawing, block and braille cells, whose meaning is
   their place in the cell.
2. Digits are in *neither* set: nothing with a numeric value (fractions, superscripts, circled
   or Roman numbers), nothing whose NFKD form holds a digit, and nothing that looks like a digit
   in any face (O, l, some Cyrillic and phonetic letters). Letters that only resemble one, as S,
   Z and B do, stay. A backbone that is probed on handwritten digits has thus never been taught
   one.
3. One class per shape. Every glyph is scaled to the same box, so size and place do not count
   (c and C are one shape, so are a middle dot and a full stop); of characters that look alike in
   *any* face (Latin A, Greek Alpha, Cyrillic A) the one with the shortest NFKD form and lowest
   code point stays. No two classes ever share a bitmap. Pairs that differ by a little, or in some
   faces only (reversed E and "there exists", accents), stay apart among the source classes, where
   they only make pretraining harder; targets keep a wider distance from everything (4, 5).
4. Targets are the first `TARGETS` shapes, in the order of a hash of their code point, that are
   letters, are in all twelve faces, do not decompose into a letter and a mark, and are not near
   an earlier target in any face.
5. Source classes are the other shapes, less every compound (accented form, ligature) of which a
   target shape is the base and whatever comes near a target in any face.

Everything is a function of the font files; nothing is drawn at random except the noise of
`render_set`, which is seeded.
"""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFont

TARGETS = 120  # target classes
# Likenesses (cosines of centred pixels, see `likeness`) from which on two characters are one shape.
# Measured: Latin and Greek A 1.00, 3 and Cyrillic Ze 1.00, reversed E and "there exists" 0.98,
# increment and Delta 0.97, A grave and A acute 0.97, 1 and l 0.96, 0 and O 0.94, C and c 0.94,
# 5 and S 0.89, 8 and B 0.85, K and k 0.65
ALIKE = 0.98
ALIKE_FOLD = 0.90  # characters with one NFKD form, case aside: c and C, a and superscript a
ALIKE_DIGIT = 0.90  # a digit and whatever is not one
ALIKE_TARGET = 0.95  # a target class and any other class
FILL = 0.8  # the longer side of a glyph, as a share of the canvas
_EM = 64  # px at which a face is rasterised before it is fitted into its box
_CELLS = ((0x2500, 0x259F), (0x2800, 0x28FF))  # box drawing and blocks, braille

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
        """Its Unicode name, lower case."""
        return unicodedata.name(self.char).lower()


def faces() -> dict[str, str]:
    """Return the font family (domain) of each of the twelve faces, in a fixed order."""
    return {face: family for face, (family, _) in _FACES.items()}


def has(glyph: Glyph, face: str) -> bool:
    """Return True if the font of `face` has a glyph for the character."""
    return ord(glyph.char) in _codes(face)


def draw(
    glyph: Glyph, face: str, size: int = 32, affine: Sequence[Sequence[float]] | None = None
) -> np.ndarray:
    """Draw a glyph in white on black, centred, its longer side `FILL` of the canvas.

    Args:
        size: of the canvas, in pixels.
        affine: matrix [2, 3] from output to input positions, both in [-1, 1] from edge to edge as
            in `torch.nn.functional.affine_grid`.

    Returns:
        uint8 [size, size]

    Raises:
        KeyError: an unknown face.
        ValueError: a character that the face does not have.
    """
    if not has(glyph, face):
        raise ValueError(f"{face} has no glyph for U+{ord(glyph.char):04X}")
    canvas = _fitted(glyph.char, face, 2 * size)  # drawn at twice the size, against jaggedness
    if affine is not None:
        (a, b, c), (d, e, f) = affine
        half = float(size)  # Pillow counts pixels from the corner
        canvas = canvas.transform(
            canvas.size,
            Image.Transform.AFFINE,
            (a, b, half * (1 - a - b + c), d, e, half * (1 - d - e + f)),
            Image.Resampling.BILINEAR,
        )
    return np.asarray(canvas.reduce(2))


def classes(split: str, limit: int | None = None) -> list[Glyph]:
    """Return the first `limit` classes of a split, or all.

    The order is fixed, so that a smaller set is the beginning of a larger one.

    Args:
        split: source or target.

    Raises:
        ValueError: an unknown split, or a limit that is not in 1..number of classes.
    """
    if split not in ("source", "target"):
        raise ValueError(f"split must be 'source' or 'target', not {split!r}")
    glyphs = _split()[split]
    if limit is None:
        return list(glyphs)
    if not 1 <= limit <= len(glyphs):
        raise ValueError(f"{split} has {len(glyphs)} classes: limit {limit} is not in 1..")
    return list(glyphs[:limit])


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


# ---- fonts ------------------------------------------------------------------------------------


@cache
def _path(face: str) -> Path:
    """Return the font file of a face."""
    import matplotlib  # late: takes a moment, and only its folder is needed

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{_FACES[face][1]}.ttf"


@cache
def _codes(face: str) -> frozenset[int]:
    """Return the code points that the font of a face has glyphs for."""
    from fontTools.ttLib import TTFont

    with TTFont(_path(face), lazy=True) as font:
        table = font.getBestCmap() or {}  # code point -> name of the glyph
        return frozenset(code for code, name in table.items() if name != ".notdef")


@cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    """Return the font of a face, at `_EM` pixels."""
    # the basic layout draws one code point as it is, whether or not raqm is installed
    return ImageFont.truetype(_path(face), _EM, layout_engine=ImageFont.Layout.BASIC)


def _fitted(char: str, face: str, size: int) -> Image.Image:
    """Draw a glyph scaled into the middle of a size x size canvas, mode L."""
    canvas = Image.new("L", (size, size))
    ink: Any = _font(face).getmask(char, "L")  # Pillow's annotation lacks that it gives bytes
    cut = Image.frombytes("L", ink.size, bytes(ink))
    box = cut.getbbox()
    if box is None:
        return canvas  # no ink
    cut = cut.crop(box)
    scale = FILL * size / max(cut.size)
    width, height = (max(1, round(scale * side)) for side in cut.size)
    cut = cut.resize((width, height), Image.Resampling.BILINEAR)
    canvas.paste(cut, ((size - width) // 2, (size - height) // 2))
    return canvas


# ---- the split --------------------------------------------------------------------------------


def _is_number(char: str) -> bool:
    """Return True if a part of the character counts: 3, superscript 3, one half, Roman two."""
    parts = char + unicodedata.normalize("NFKD", char)
    return any(unicodedata.numeric(part, None) is not None for part in parts)


def likeness(chars: Sequence[str]) -> np.ndarray:
    """Compute how alike the shapes of characters are, float32 [N, N]: 1 is the same shape.

    It is the greatest cosine of their drawings over the faces, or 1 where the drawing of one in
    some face is, bit for bit, that of the other in another (an underscore in bold, a macron in
    STIX).
    """
    alike = np.zeros((len(chars), len(chars)), np.float32)
    drawn: dict[bytes, int] = {}
    for face in _FACES:
        looks = np.zeros((len(chars), 32 * 32), np.float32)
        for row, char in enumerate(chars):
            if ord(char) in _codes(face):
                drawing = draw(Glyph(char), face)
                looks[row] = drawing.ravel() - drawing.mean()
                other = drawn.setdefault(drawing.tobytes(), row)
                alike[row, other] = alike[other, row] = 1
        looks /= np.maximum(np.linalg.norm(looks, axis=1, keepdims=True), 1e-6)
        np.maximum(alike, looks @ looks.T, out=alike)
    return alike


@cache
def _split() -> dict[str, tuple[Glyph, ...]]:
    """Choose source and target classes; the head of this module says how."""
    common = [face for face, family in faces().items() if family in ("DejaVu Sans", "DejaVu Serif")]
    pool = [
        char
        for char in map(chr, frozenset.intersection(*(_codes(face) for face in common)))
        if unicodedata.category(char)[0] not in "MZC"
        and not any(low <= ord(char) <= high for low, high in _CELLS)
        and not _is_number(char)
    ]
    pool.sort(key=lambda char: (len(unicodedata.normalize("NFKD", char)), char))
    chars = list("0123456789") + pool
    alike = likeness(chars)
    fold = np.array([unicodedata.normalize("NFKD", char).casefold() for char in chars])
    digit = np.array([char.isdigit() for char in chars])
    bound = np.where(fold[:, None] == fold, ALIKE_FOLD, ALIKE)
    bound = np.where(digit[:, None] ^ digit, ALIKE_DIGIT, bound)
    stands_for: dict[str, str] = {}  # every character -> the first that has its shape
    for index, same in enumerate(alike >= bound):
        first = int(same.argmax())  # itself, if it is like none before it
        stands_for[chars[index]] = stands_for.get(chars[first], chars[first])
    shapes = sorted({char for char in stands_for.values() if not char.isdigit()})
    position = {char: index for index, char in enumerate(chars)}

    def simple(char: str) -> bool:
        """Return True for a letter of all faces that is not composed of others."""
        whole = unicodedata.normalize("NFKD", char) == char
        return (
            whole and unicodedata.category(char) in ("Lu", "Ll", "Lo") and ord(char) in everywhere
        )

    def base(char: str) -> str:
        """Return the first character that has the shape of this one without its marks."""
        first = unicodedata.normalize("NFKD", char)[0]
        return stands_for.get(first, first)

    def order(char: str) -> str:
        """Return the hash by which candidates are sorted."""
        return hashlib.sha256(f"U+{ord(char):04X}".encode()).hexdigest()

    everywhere = frozenset.intersection(*(_codes(face) for face in _FACES))
    target: list[str] = []
    for char in sorted(filter(simple, shapes), key=order):
        likest = alike[position[char], [position[other] for other in target]].max(initial=0)
        if len(target) < TARGETS and likest < ALIKE_TARGET:
            target.append(char)
    targets = [position[char] for char in target]
    near = alike[:, targets].max(1) >= ALIKE_TARGET  # [N]; a target is near itself
    source = [char for char in shapes if not near[position[char]] and base(char) not in target]
    return {"target": tuple(map(Glyph, target)), "source": tuple(map(Glyph, source))}
