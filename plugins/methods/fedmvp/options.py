"""The options of fedmvp.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    prompts: int
    """Number P of prompts for an image."""

    heads: int
    """Number of heads of the cross-attention, which must divide the width of the image tower."""

    weight: float
    """Weight alpha of the distance from the image's features without prompts."""

    attributes: dict[str, Any]
    """Maps the name of a class to a list of texts that describe it. The templates describe the
    other classes."""

    templates: list[str]
    """Texts that describe classes without attributes; the name of the class takes the place of
    {}."""
