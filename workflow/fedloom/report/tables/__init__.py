"""Tables: a kind says what a run's numbers are and what they are called; the rest is shared.

A kind is a module of this folder with

    measure(run, rounds, entry) -> {metric: number}   one run, from its Parquet files
    column(metric) -> Column                          heading, decimals, which end is better
    words(entry, rounds) -> str                       what the caption says is measured
"""

from pathlib import Path

from fedloom.report.tables import (
    accuracy,
    clustering,
    communication,
    domains,
    held_out,
    layout,
    published,
)
from fedloom.report.tables.summary import summarise

KINDS = {
    "accuracy": accuracy,
    "held_out": held_out,
    "domains": domains,
    "communication": communication,
    "clustering": clustering,
}


def write(spec: dict, series: list[dict], outputs: dict[str, Path]) -> None:
    """Write a table.

    Args:
        spec: see fedloom.outputs.table_spec.
        series: its runs, see fedloom.outputs.series.
        outputs: paths of the `md`, `csv`, `tex` (booktabs), `html` and `parquet`.
    """
    entry, rounds = spec["table"], spec["rounds"]
    kind = KINDS[entry["kind"]]
    measured = [kind.measure(run, rounds, entry) for run in series]
    frame = summarise(series, measured)
    words = caption(spec, kind.words(entry, rounds), int(frame["seeds"].min()))
    if "published" in entry:
        frame = published.beside(frame, entry["published"])
        words += f" Published: {entry['published']['citation']}, "
        words += f"Table {entry['published']['table']}."
    label = f"tab:{spec['study']['name']}-{spec['label']}"
    layout.write(frame, kind.column, words, label, outputs)


def caption(spec: dict, measured: str, seeds: int) -> str:
    """Title, what is measured, over how many seeds, how it is marked."""
    title = spec["table"].get("title", f"Study {spec['study']['name']}")
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{title}: {measured}; {spread}. Best bold, second underlined."
