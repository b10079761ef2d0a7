"""The keys that all sources of data have, beside their own."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedloom.common.schema import Count, Keys, Number, Several, Share, require
from fedloom.config.settings import NOTHING_EXPECTED, Expected

ImageSize = Annotated[int, Field(ge=1, le=4096)]


class LongTail(Keys):
    """Keep n * (1/factor)^(i/(C-1)) training images of class i of C.

    n is the number of the largest class (Cao et al., LDAM); the test images stay.
    """

    factor: Annotated[Number, Field(ge=1)]
    """Imbalance, of the first class to the last."""


class SourceKind(Keys):
    """The keys of a source, which stand beside `source`: of which images a dataset is made."""

    keep_classes: Several[str] | None = None
    """Names of the classes to keep, numbered anew in this order; default: all."""
    min_images_per_domain: Count | None = None
    """Leave out domains with fewer training images (with fewer images, where the test split is
    drawn)."""
    first_per_domain: Count | None = None
    """Keep at most this number of training images of every domain, the first in the order in which
    the source lists them; the test images stay (FedBN's code)."""
    long_tail: LongTail | None = None
    max_train_per_class: Count | None = None
    """At most this number of training images of every class; the same in every run."""
    max_test_per_class: Count | None = None
    """At most this number of test images of every class."""
    max_train: Count | None = None
    """At most this number of training images, drawn in proportion to the classes; the same in every
    run."""
    max_test: Count | None = None
    """At most this number of test images."""

    def expected(self) -> Expected:
        """Return the numbers of images and classes, where the keys alone state them."""
        return NOTHING_EXPECTED


TestFraction = Annotated[
    Share,
    Field(
        description="of a dataset without an official test split; fixed, stratified by class and "
        "domain where there are images enough, else by each of them"
    ),
]
ClassPerDomain = Annotated[
    bool,
    Field(
        description='classes of one name in two domains are two classes, named "domain/class"; '
        "else they are one"
    ),
]
Resize = Annotated[
    Literal["crop", "squash"],
    Field(
        description="crop (the default): as image_size says; squash: the whole image is resized to "
        "the square, whatever its shape"
    ),
]
SkipUnreadable = Annotated[
    bool,
    Field(
        description="leave unreadable images out, named in the log and counted in the receipt "
        "images.json"
    ),
]
SIZED = (
    "images are resized to this shorter side (bicubic) and cut to a square; default: as they are, "
    "which must be one size"
)


ClassNames = Annotated[
    list[Annotated[str, Field(pattern=r"\S")]] | None,
    Field(
        min_length=1,
        description="a name for every class, in the order of their numbers; default: the dataset's "
        "own, or the numbers, which CLIP methods refuse",
    ),
]


class ImageSource(SourceKind):
    """The keys of a source of images of any size."""

    image_size: ImageSize | None = Field(None, description=SIZED)
    resize: Resize | None = None
    skip_unreadable: SkipUnreadable = False

    @model_validator(mode="after")
    def _resized_to_a_size(self) -> Self:
        return require(self, resize="image_size")
