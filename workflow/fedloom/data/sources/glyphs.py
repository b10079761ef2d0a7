"""Letters of many scripts, drawn; families of fonts, or styles, are the domains."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field

from fedloom.common.schema import Count, Several
from fedloom.config.datasets import Expected, SourceKind, TestFraction
from fedloom.data.image_list import ImageList, Item
from fedloom.data.splits import fixed_test_split

if TYPE_CHECKING:
    from fedloom.data.glyphs import Glyph


Style = Literal["plain", "outline", "inverted", "turned", "noisy", "covered"]


class Glyphs(SourceKind):
    """Letters of many scripts in 12 font faces, 32 x 32 pixels, drawn; the 4 font families are the
    domains, or the styles where there are some; classes x 12 x draws images, times styles.
    """

    classes: Annotated[int, Field(ge=2, le=120)] = 100
    draws: Count = 4
    """Per class and face."""
    styles: Several[Style] | None = None
    """Domains; characters are drawn in each of them, and tested in faces that their class was not
    trained in."""
    test_fraction: TestFraction = 0.25

    def expected(self) -> Expected:
        """Return the numbers of images and classes: a face draws every class."""
        return Expected(self.classes * 12 * self.draws * len(self.styles or [1]), self.classes)


def read(settings: dict[str, Any]) -> ImageList:
    """Draw `classes` target characters in 12 faces, `draws` times each: 32 x 32 pixels, grey.

    With `styles`, the same is drawn in each of them, and they are the domains in the place of the 4
    font families. Test images are then of faces in which their class is not trained on.
    """
    import matplotlib
    import PIL.Image

    from fedloom.data import glyphs

    chosen = glyphs.classes("target", settings["classes"])
    pixels, labels, faces, names = glyphs.render_set(chosen, settings["draws"])
    family = glyphs.faces()
    domains, test = np.array([family[face] for face in faces]), None
    if "styles" in settings:
        styles = settings["styles"]
        pixels = np.concatenate([_in_style(chosen, settings["draws"], style) for style in styles])
        domains = np.repeat(styles, len(labels))
        # a class in a face is in one half alone, in all its styles
        cells = np.stack([labels, np.unique(faces, return_inverse=True)[1]], 1)
        pairs, pair = np.unique(cells, axis=0, return_inverse=True)
        split = fixed_test_split(pairs[:, 0], np.full(len(pairs), ""), settings["test_fraction"])
        test = np.tile(split.test[pair.ravel()], len(styles))
        labels = np.tile(labels, len(styles))

    def items() -> Iterator[Item]:
        for row, image in enumerate(pixels[..., 0]):
            yield Item(f"drawing {row}", lambda image=image: PIL.Image.fromarray(image))

    return ImageList(
        items=items,
        labels=labels,
        classes=names,
        provenance=(
            f"drawn by Pillow {PIL.__version__} from the fonts of matplotlib "
            f"{matplotlib.__version__}"
        ),
        domains=domains,
        test=test,
        test_split="some faces of every class, in all styles",
    )


def _in_style(chosen: "list[Glyph]", draws: int, style: str) -> np.ndarray:
    """Draw characters anew, and restyle them: uint8 [N, 32, 32, 1], as `glyphs.render_set` orders.

    Every style has another jitter, else its images were those of another style, changed.
    """
    from fedloom.data import glyphs

    seed = 1 + get_args(Style).index(style)
    pixels, labels, *_ = glyphs.render_set(chosen, draws, seed)
    drawn = [
        glyphs.restyled(pixels[labels == label, :, :, 0], style, ord(glyph.char))
        for label, glyph in enumerate(chosen)
    ]
    return np.concatenate(drawn)[..., None]
