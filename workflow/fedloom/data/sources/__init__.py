"""Read images from sources, each of which is a module of this folder or a plugin.

A module has a class with the source's keys, and the function `read(settings)`, which returns an
ImageList.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.common.json_types import JsonDict
from fedloom.config.kinds import KINDS_FROM_PLUGINS

if TYPE_CHECKING:
    from fedloom.data.image_list import ImageList


def build_store(source: str, settings: JsonDict, images: Path) -> None:
    """List the images of an entry of the config's `datasets`, and write them into a store.

    Args:
        source: the entry's source.
        settings: the other keys of the entry.
        images: path of the store.
    """
    # imported here, because a plan imports sources only for their keys
    from fedloom.data.images import write_store

    write_store(read(source, settings), settings, images)


def read(source: str, settings: JsonDict) -> "ImageList":
    """Return the images that a source lists; `settings` are the other keys of its entry."""
    own = KINDS_FROM_PLUGINS["source"].own
    if source not in own:
        # imported here, because a plan imports sources only for their keys
        from fedloom.data import plugins

        return plugins.read(source, settings)
    return importlib.import_module(own[source].__module__).read(settings)
