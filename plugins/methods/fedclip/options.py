"""The options of fedclip.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    template: str
    """Text that describes a class; its name takes the place of {}."""

    loss: Literal["contrastive", "classes"]
    """Loss: `contrastive` compares the images of a batch with its texts, and its texts with its
    images; `classes` compares images with the texts of all classes."""

    weighted: bool
    """Weight clients by their numbers of training images. The released code does not."""
