"""Read images from sources: one module per source with a class of its keys, and plugins.

It has `read(settings)`, which returns an ImageList.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.config.kinds import KINDS_FROM_PLUGINS

if TYPE_CHECKING:
    from fedloom.data.image_list import ImageList


def build_store(source: str, settings: dict[str, Any], images: Path) -> None:
    """Write the image store of an entry of the config's `datasets`, see `read`."""
    # imported here, for a plan imports sources for their keys alone
    from fedloom.data.images import write_store

    write_store(read(source, settings), settings, images)


def read(source: str, settings: dict[str, Any]) -> "ImageList":
    """Return the images that a source lists for the other keys of its entry."""
    own = KINDS_FROM_PLUGINS["source"].own
    if source not in own:
        # imported here, for a plan imports sources for their keys alone
        from fedloom.data import plugins

        return plugins.read(source, settings)
    return importlib.import_module(own[source].__module__).read(settings)
