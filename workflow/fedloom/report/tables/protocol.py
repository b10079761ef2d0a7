"""The settings of every method, a paper's in brackets where they differ (PFPT, Table 9)."""

from dataclasses import replace
from typing import Any

import pandas as pd

from fedloom.config.output_kinds import RunsTable
from fedloom.config.protocols import protocol_rows
from fedloom.config.settings import Output, Settings
from fedloom.report.tables.layout import EMPTY, Built, Texts
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

KEYS = ("dataset", "partition")
TITLES = {
    "rounds": "Rounds",
    "clients": "Clients",
    "clients_per_round": "In a round",
    "optimizer": "Optimiser",
    "lr": "Learning rate",
    "epochs": "Epochs",
    "batch_size": "Batch",
}


class Protocol(RunsTable):
    """Settings of every method, without any run (PFPT Table 9)."""

    shows = "settings"
    caption = (
        "Rounds, clients, and training options of every method. In brackets the paper's, "
        "where the table has some and they differ."
    )

    def complete(self, settings: Settings, output: Output, where: str) -> Output:
        """Return the table with the settings of its methods, none of which it needs a run of."""
        rows = protocol_rows(settings, output)
        return replace(output, methods=(), extra={"rows": rows})


def build(runs: list[ShownRun], job: TableJob) -> Built:
    """Return a row per scenario and method, as the study has them; no run is read."""
    frame = pd.DataFrame(job.settings["rows"]).assign(clients=lambda f: f["clients"].astype(str))
    keys = [key for key in KEYS if frame[key].nunique() > 1]
    cells = frame[[*keys, "title"]].copy()
    for name in TITLES:
        cells[name] = [_cell(row, name, job.published) for row in frame.to_dict("records")]
    marks = pd.DataFrame("", index=cells.index, columns=cells.columns)
    titles = [*map(str.capitalize, keys), "Method", *TITLES.values()]
    text = f"{job.title or f'Study {job.study}'}: settings of every method"
    if job.published is not None:
        source = f"{job.published['citation']}, Table {job.published['table']}"
        text += f"; in brackets those of {source}, where they differ"
    return Built(frame, Texts(cells, marks, titles, len(keys) + 1), f"{text}.")


def _cell(row: dict[Any, Any], name: str, entry: dict | None) -> str:
    """Write a setting, and the paper's in brackets if it is another one."""
    value = row[name]
    text = EMPTY if value is None or value != value else _text(value)
    if entry is None:
        return text
    column = entry["columns"].get(f"{row['dataset']}/{row['partition']}")
    printed = entry["values"].get(entry["rows"].get(row["method"]), {}).get(column, {}).get(name)
    if printed is None:
        return text
    other = _text(printed[0] if isinstance(printed, list) else printed)
    return text if other == text else f"{text} ({other})"


def _text(value: Any) -> str:
    """Write a number without needless zeros."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)
