"""The options of fedclip.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    template: str
    """Text of a class, whose {} its name takes."""

    loss: Literal["contrastive", "classes"]
    """contrastive: images of a batch against the texts of the batch, both ways; classes: images
    against all classes."""

    weighted: bool
    """Weigh clients by their training images; the released code does not."""
