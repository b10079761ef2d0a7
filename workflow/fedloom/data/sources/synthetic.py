"""Make up images: gratings with the classes and domains that a data set has, without a download.

`fedloom run STUDY --smoke` puts this source in the place of a study's data sets.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from fedloom.common.ids import NO_DOMAIN
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import Count, Natural, Several
from fedloom.common.seeds import numpy_generator
from fedloom.config.datasets import Expected, ImageSource
from fedloom.data.image_list import ImageList, Item

# waves across an image; a class has one of these numbers, an angle and a colour
WAVES = (2, 3, 4, 6)
# the standard deviation of noise, in grey levels of 255
NOISE = 20


class Synthetic(ImageSource):
    """Made-up images: gratings whose angle, number of waves and colour tell the class, and whose
    contrast and brightness tell the domain. They need no download, and are for tests of a study.
    """

    licence = "FedLoom computes the images, which contain nothing of others"

    classes: Annotated[list[str], Field(min_length=2)]
    """Names of the classes."""
    domains: Several[str] | None = None
    """Names of the domains. Default: all images are of one domain."""
    train: Natural
    """Number of training images of every class in every domain that has the class. With 0, all
    images are test images, for a dataset that no client trains on."""
    test: Count
    """Number of test images of every class in every domain that has the class."""
    classes_per_domain: Count | None = None
    """Number of classes that each domain has, dealt in turn. Default: all classes."""
    test_domains: bool = True
    """Whether test images have domains. With false, they go, in a partition by domains, to clients
    that hold their class."""
    side: Annotated[int, Field(ge=8, le=1024)] = 32
    """Side of the images in pixels."""

    @model_validator(mode="after")
    def _every_class_is_dealt(self) -> Self:
        """Refuse domains that have too many classes, or too few to have all classes together."""
        each = self.classes_per_domain
        domains = self.domains or [""]
        if each is None:
            return self
        if not len(self.classes) / len(domains) <= each <= len(self.classes):
            raise ValueError(
                f"classes_per_domain must be at most {len(self.classes)}, the number of classes, "
                f"and give each class to one of the {len(domains)} domains, got {each}"
            )
        return self

    def expected(self) -> Expected:
        """Return the numbers of images and classes."""
        domains = self.domains or [""]
        each = self.classes_per_domain or len(self.classes)
        cells = len(domains) * each
        return Expected(cells * (self.train + self.test), len(self.classes), cells * self.test)


def read(settings: JsonDict) -> ImageList:
    """List the images class by class; within a class, by domain, and training images first."""
    classes = settings["classes"]
    domains = settings.get("domains", ["all"])
    kinds = [False] * settings["train"] + [True] * settings["test"]

    # the class, the domain and the half of each image
    has_class = _classes_of_domains(
        len(classes), len(domains), settings.get("classes_per_domain", len(classes))
    )
    cells = np.argwhere(has_class.T)  # [cells, 2]: class and domain
    labels = np.repeat(cells[:, 0], len(kinds))
    numbers = np.repeat(cells[:, 1], len(kinds))
    test = np.tile(np.array(kinds, bool), len(cells))

    # what the store says of the domains; images are made in their true domain
    names = np.array(domains)[numbers]
    if not settings["test_domains"]:
        names = np.where(test, NO_DOMAIN, names)

    def items() -> Iterator[Item]:
        """Yield the images in order; each is drawn only when it is read."""
        for row, (label, domain) in enumerate(zip(labels, numbers, strict=True)):
            draw = partial(_grating, int(label), int(domain), row, settings["side"])
            yield Item(f"image {row}", draw)

    return ImageList(
        items=items,
        labels=labels,
        classes=classes,
        provenance="made up: gratings",
        domains=names,
        test=test,
        test_split="made up",
    )


def _classes_of_domains(classes: int, domains: int, each: int) -> np.ndarray:
    """Return which domain has which class, bool [domains, classes].

    Each domain has `each` classes, in turn, beginning where the classes of the domain before it
    end.
    """
    has_class = np.zeros((domains, classes), bool)
    for domain in range(domains):
        dealt = np.arange(domain * each, (domain + 1) * each) % classes
        has_class[domain, dealt] = True
    return has_class


def _grating(label: int, domain: int, row: int, side: int) -> Image.Image:
    """Draw the image of a row: a coloured grating, with noise that differs from row to row."""
    # the class determines angle, number of waves and colour
    rng = numpy_generator(0, "synthetic class", label)
    angle = rng.uniform(0, np.pi)
    waves = WAVES[label % len(WAVES)]
    colour = rng.uniform(0.3, 1, 3)

    # the domain determines brightness and contrast
    rng = numpy_generator(0, "synthetic domain", domain)
    brightness = rng.uniform(90, 165)
    contrast = rng.uniform(40, 90)

    # the row determines the phase and the noise
    rng = numpy_generator(0, "synthetic image", row)
    phase = rng.uniform(0, 2 * np.pi)
    places = np.linspace(0, 1, side, endpoint=False)
    across = np.cos(angle) * places[None, :] + np.sin(angle) * places[:, None]  # [side, side]
    wave = np.sin(2 * np.pi * waves * across + phase)
    pixels = brightness + contrast * wave[..., None] * colour  # [side, side, 3]
    pixels = pixels + rng.normal(0, NOISE, pixels.shape)
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))
