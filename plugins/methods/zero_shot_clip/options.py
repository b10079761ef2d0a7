"""The options of zero_shot_clip.

`fedloom check` writes this file from method.toml.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The class of task.options."""

    templates: list[str]
    """Texts in which the class name takes the place of {}. Their features are averaged."""
