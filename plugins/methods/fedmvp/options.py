"""The options of fedmvp.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """P, prompts that an image gets."""

    heads: int
    """Heads of the cross-attention; they divide the width of the image tower."""

    weight: float
    """alpha, of the distance from the image's features without prompts."""

    attributes: dict[str, Any]
    """Lists of texts that describe a class, by class name; a class without is described by the
    templates."""

    templates: list[str]
    """Texts whose {} takes the name of a class without attributes."""
