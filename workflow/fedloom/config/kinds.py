"""What the schema declares of every kind of table and figure, beside its keys.

x-shows: runs (default), members of one grid (grid) or of several (grids), backbones, datasets, or
    settings, which need no run
x-artefact: the method's table that it is made of; else it reads evaluations
x-reads: of a backbone its accuracy by block (default), or its features; of runs `names`, if the
    datasets' classes are named
x-seeds: all (default), or first
x-needs: checks of fedloom.config.requirements that the study must pass
x-caption: what the report says below it
"""

import re
from dataclasses import dataclass
from typing import Any

from fedloom.common import schema


@dataclass(frozen=True)
class Kind:
    """A kind of table or figure, as the schema declares it."""

    name: str
    shows: str
    artefact: str | None
    reads: str
    seeds: str
    needs: tuple[str, ...]
    caption: str

    def artefact_of(self, settings: dict[str, Any]) -> str | None:
        """Return the artefact that it is made of: declared, or chosen by the key `artefact`."""
        return self.artefact or settings.get("artefact")

    def caption_of(self, settings: dict[str, Any]) -> str:
        """Return the caption of a table or figure with these keys, as reStructuredText."""
        texts = {key: as_rst(str(value)) for key, value in settings.items()}
        return self.caption.format(**{"metric": "", **texts})


def as_rst(text: str) -> str:
    """Return reStructuredText that shows `text` as it is, on one line."""
    return re.sub(r"([^\w\s]|_)", r"\\\1", " ".join(text.split()))


def kind_of(section: str, name: str) -> Kind:
    """Return the declaration of a kind of the section `tables` or `figures`."""
    entry = schema.load("config")["$defs"][section.removesuffix("s")][name]
    return Kind(
        name=name,
        shows=entry.get("x-shows", "runs"),
        artefact=entry.get("x-artefact"),
        reads=entry.get("x-reads", "accuracy"),
        seeds=entry.get("x-seeds", "all"),
        needs=tuple(entry.get("x-needs", ())),
        caption=" ".join(entry["x-caption"].split()),
    )
