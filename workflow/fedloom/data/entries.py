"""Entries of the config's `datasets` by themselves, for commands that work on one data set."""

from typing import Any

from fedloom.config.kind_plugins import WithPlugins
from fedloom.config.recipes import check_dataset

SOURCES = WithPlugins("source")


def dataset_entry(label: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return a checked entry of the config's `datasets`, with its recipe resolved and defaults."""
    source, keys = check_dataset(label, entry, SOURCES)
    return {"source": source} | keys.plain
