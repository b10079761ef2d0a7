"""Where images come from: one module per source of config.schema.yaml's `dataset`.

A module has `read(settings)`, which returns an ImageList: what images there are, with their labels.
"""

import importlib
from pathlib import Path
from typing import Any

from fedloom.data.images import write_store


def build(source: str, settings: dict[str, Any], images: Path) -> None:
    """Write the store of one entry of the config's `datasets`.

    Args:
        source: the module's name.
        settings: the entry's other keys, their defaults filled in.
        images: the store's file.

    Raises:
        FedLoomError: names the file that is missing or damaged, or the key to set.
    """
    module = importlib.import_module(f"fedloom.data.sources.{source}")
    write_store(module.read(settings), settings, images)
