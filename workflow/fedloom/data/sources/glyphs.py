"""Draw letters of many scripts with the fonts that matplotlib ships: images without a download.

`workflow/pretraining` chose two disjoint sets of characters from one pool:

- *source* characters are used only to pretrain the micro backbones;
- *target* characters are the classes of this dataset.

Digits are in neither set. The domains of the dataset are four font families, each with a regular, a
bold and an italic face; or they are styles of drawing.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import PIL
from PIL import Image, ImageFont
from pydantic import Field

from fedloom.common.files import read_json
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import Count, Several
from fedloom.common.seeds import numpy_generator
from fedloom.config.datasets import Expected, SourceKind, TestFraction
from fedloom.data.image_list import ImageList, array_items
from fedloom.data.splits import fixed_test_split
from fedloom.machine.install import ROOT

Style = Literal["plain", "outline", "inverted", "turned", "noisy", "covered"]

# source and target characters, as pretraining.glyph_classes chose them
GLYPH_CLASSES: dict[str, str] = read_json(ROOT / "workflow/resources/glyph_classes.json")
# pixels of a side of the canvas
GLYPH_SIDE = 32
# the longer side of a glyph, as a share of the canvas
FILL = 0.8
# pixels of the size at which a face is rasterised, before the glyph is resized
_EM = 64
# how far letters are turned at most, in degrees each way
TURN = 45
# the standard deviation of noise, in grey levels of 255
NOISE = 60
# pixels of a side of the square that hides a part of a letter
COVER = 10

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


class Glyphs(SourceKind):
    """Letters of many scripts, drawn in 12 font faces, at 32 x 32 pixels. The domains are the 4
    font families, or the `styles` if there are some. There are classes x 12 x draws images, for
    each style.
    """

    licence = (
        "the images contain shapes of the fonts DejaVu (Bitstream Vera's licence) and STIX 1.0 "
        "(SIL Open Font License 1.1), whose texts lie beside the fonts in matplotlib's data folder"
    )

    classes: Annotated[int, Field(ge=2, le=120)] = 100
    """Number of classes, each of which is a character."""
    draws: Count = 4
    """Number of images of every class in every font face."""
    styles: Several[Style] | None = None
    """Styles of drawing, which are then the domains. Characters are drawn in each style, and tested
    in font faces that their class was not trained in."""
    test_fraction: TestFraction = 0.25

    def expected(self) -> Expected:
        """Return the numbers of images and classes: every face draws all classes."""
        return Expected(self.classes * 12 * self.draws * len(self.styles or [1]), self.classes)


def read(settings: JsonDict) -> ImageList:
    """Draw `classes` target characters in 12 faces, `draws` times each, with 32 x 32 grey pixels.

    If there are `styles`, draw all of that once in each style.
    """
    import matplotlib

    # one set of images, in plain style
    chosen = classes("target", settings["classes"])
    pixels, labels, faces, names = render_set(chosen, settings["draws"])
    domains = np.array([_FACES[face][0] for face in faces])
    test = None

    # or a set in each style
    if "styles" in settings:
        styles = settings["styles"]
        pixels = np.concatenate([_in_style(chosen, settings["draws"], style) for style in styles])
        domains = np.repeat(styles, len(labels))

        # the images of a class in one face are all training images, or all test images
        cells = np.stack([labels, np.unique(faces, return_inverse=True)[1]], 1)
        pairs, pair = np.unique(cells, axis=0, return_inverse=True)
        held, _ = fixed_test_split(pairs[:, 0], np.full(len(pairs), ""), settings["test_fraction"])
        test = np.tile(held[pair.ravel()], len(styles))
        labels = np.tile(labels, len(styles))

    fonts = f"the fonts of matplotlib {matplotlib.__version__}"
    return ImageList(
        items=array_items(pixels[..., 0]),
        labels=labels,
        classes=names,
        provenance=f"drawn by Pillow {PIL.__version__} from {fonts}",
        domains=domains,
        test=test,
        test_split="some faces of every class, in all styles",
    )


def _in_style(chars: list[str], draws: int, style: str) -> np.ndarray:
    """Draw characters in a style; return uint8 [N, 32, 32, 1] in the order of `render_set`.

    Every style has its own jitter. Otherwise the images of one style would be restyled copies of
    the images of another style.
    """
    seed = 1 + get_args(Style).index(style)
    pixels, labels, *_ = render_set(chars, draws, seed)
    drawn = [
        restyle(pixels[labels == label, :, :, 0], style, ord(char))
        for label, char in enumerate(chars)
    ]
    return np.concatenate(drawn)[..., None]


def faces() -> dict[str, str]:
    """Return the font family (domain) of each of the twelve faces, in a fixed order."""
    return {face: family for face, (family, _) in _FACES.items()}


def glyph_name(char: str) -> str:
    """Return a character's Unicode name, lower case."""
    return unicodedata.name(char).lower()


def has(char: str, face: str) -> bool:
    """Return True if the font of `face` has a glyph for the character."""
    return ord(char) in codes(face)


def draw_glyph(char: str, face: str, affine: Sequence[Sequence[float]] | None = None) -> np.ndarray:
    """Draw a character in white on black, uint8 [32, 32].

    The character's longer side is `FILL` of the canvas. `affine` [2, 3] maps a position in the
    result to the position in the plain drawing; the edges of both are at -1 and 1. Raises a
    ValueError if the face has no such character.
    """
    if not has(char, face):
        raise ValueError(f"{face} has no glyph for U+{ord(char):04X}")

    # draw the letter in the middle, at twice the size, so that its edges become smooth; the type is
    # Any, because Pillow's annotations do not say that a mask gives bytes
    canvas = Image.new("L", (2 * GLYPH_SIDE, 2 * GLYPH_SIDE))
    ink: Any = _font(face).getmask(char, "L")
    cut = Image.frombytes("L", ink.size, bytes(ink))
    box = cut.getbbox()
    if box is not None:
        cut = cut.crop(box)
        scale = FILL * 2 * GLYPH_SIDE / max(cut.size)
        width, height = (max(1, round(scale * side)) for side in cut.size)
        cut = cut.resize((width, height), Image.Resampling.BILINEAR)
        canvas.paste(cut, ((2 * GLYPH_SIDE - width) // 2, (2 * GLYPH_SIDE - height) // 2))

    # turn and shift it; Pillow counts pixels from the corner, not from the middle
    if affine is not None:
        (a, b, c), (d, e, f) = affine
        half = float(GLYPH_SIDE)
        canvas = canvas.transform(
            canvas.size,
            Image.Transform.AFFINE,
            (a, b, half * (1 - a - b + c), d, e, half * (1 - d - e + f)),
            Image.Resampling.BILINEAR,
        )
    return np.asarray(canvas.reduce(2))


def classes(split: str, limit: int | None = None) -> list[str]:
    """Return the first `limit` characters of the set `split`, source or target; None: all."""
    return [*GLYPH_CLASSES[split][:limit]]


def render_set(
    chars: Sequence[str], draws: int = 1, seed: int = 0, noise: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Draw every character `draws` times in each face that has it.

    The jitter of a class depends only on its character and `seed`. `noise` scales the jitter: with
    1, letters are turned by up to 8 degrees, scaled by 10%, sheared by 0.1 and shifted by 6% of the
    canvas.

    Returns:
        1. The images, uint8 [N, 32, 32, 1], ordered by class, face and draw.
        2. Their labels, int64 [N], which are positions in `chars`.
        3. The face of each image, str [N].
        4. The names of the classes.
    """
    images = []
    labels = []
    where = []
    for label, char in enumerate(chars):
        # draw a matrix for every face, so that a face without the character changes no other face
        rng = np.random.default_rng([seed, ord(char)])
        jitter = jitters(rng, len(_FACES) * draws, noise).reshape(len(_FACES), draws, 2, 3)
        for index, face in enumerate(_FACES):
            if not has(char, face):
                continue
            images += [draw_glyph(char, face, affine=matrix) for matrix in jitter[index]]
            labels += [label] * draws
            where += [face] * draws

    return (
        np.stack(images)[..., None],
        np.array(labels, np.int64),
        np.array(where),
        [glyph_name(char) for char in chars],
    )


def jitters(rng: np.random.Generator, count: int, noise: float = 1.0) -> np.ndarray:
    """Return random matrices for `draw_glyph`, float64 [count, 2, 3]; `noise` scales them."""
    # the turn, sizes and shear of each matrix; the last two numbers of `unit` are shifts
    unit = rng.uniform(-1, 1, (count, 6)) * noise
    turn = np.deg2rad(8) * unit[:, 0]
    width = 1 / (1 + 0.1 * unit[:, 1])
    height = 1 / (1 + 0.1 * unit[:, 2])
    shear = 0.1 * unit[:, 3]

    cos = np.cos(turn)
    sin = np.sin(turn)
    rows = [
        [width * cos, width * (shear * cos - sin), 0.12 * unit[:, 4]],
        [height * sin, height * (shear * sin + cos), 0.12 * unit[:, 5]],
    ]
    return np.stack([np.stack(row, -1) for row in rows], 1)


@cache
def _path(face: str) -> Path:
    """Return the file of a face."""
    # imported here: the import takes a moment, and is needed only for matplotlib's folder
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{_FACES[face][1]}.ttf"


@cache
def codes(face: str) -> frozenset[int]:
    """Return the code points that the font of a face has glyphs for."""
    from fontTools.ttLib import TTFont

    with TTFont(_path(face), lazy=True) as font:
        # the name of the glyph of each code point
        table = font.getBestCmap() or {}
        return frozenset(code for code, name in table.items() if name != ".notdef")


@cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    """Return a face at the size at which it is rasterised."""
    # the basic layout draws a code point in the same way, whether or not raqm is installed
    return ImageFont.truetype(_path(face), _EM, layout_engine=ImageFont.Layout.BASIC)


def restyle(images: np.ndarray, style: str, code: int) -> np.ndarray:
    """Draw a class's images, uint8 [N, H, W], in a style; `code` seeds the random numbers."""
    rng = numpy_generator(0, f"glyph style {style}", code)
    return np.stack([_restyled(image, style, rng) for image in images])


def _restyled(image: np.ndarray, style: str, rng: np.random.Generator) -> np.ndarray:
    """Return an image, uint8 [H, W], in a style."""
    match style:
        case "outline":
            # imported here, because a plan imports sources only for their keys
            import scipy

            return scipy.ndimage.morphological_gradient(image, size=3)
        case "inverted":
            return 255 - image
        case "turned":
            angle = rng.uniform(-TURN, TURN)
            return np.asarray(Image.fromarray(image).rotate(angle, Image.Resampling.BILINEAR))
        case "noisy":
            return (image + rng.normal(0, NOISE, image.shape)).round().clip(0, 255).astype(np.uint8)
        case "covered":
            top, left = rng.integers(0, np.array(image.shape) - COVER + 1)
            image = image.copy()
            image[top : top + COVER, left : left + COVER] = 0
    return image
