"""Plans of studies, made with the kinds of entry that all rooms of the library have."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.config import resolve as config
from fedloom.config.data_plugins import WithPlugins
from fedloom.config.kinds import Catalogue, Room
from fedloom.config.partitions import SchemeKind
from fedloom.config.settings import Settings
from fedloom.data import schemes
from fedloom.data.entries import SOURCES
from fedloom.report import figures, tables
from fedloom.study.plan import Plan

KINDS: Catalogue = {
    "datasets": SOURCES,
    "partitions": WithPlugins(Room(schemes.__name__, SchemeKind), "scheme"),
    "tables": tables.KINDS,
    "figures": figures.KINDS,
}


def load_plan(files: Sequence[Path] = (), overrides: Mapping[str, Any] | None = None) -> Plan:
    """Return the plan of config.yaml with a study's files over it, see `Plan.load`."""
    return Plan.load(KINDS, files, overrides)


def resolve(merged: dict[str, Any], files: Iterable[Path] = ()) -> Settings:
    """Check a merged config, and return what its labels stand for.

    Raises:
        FedLoomError: one line that names the key.
    """
    return config.resolve(merged, KINDS, files)
