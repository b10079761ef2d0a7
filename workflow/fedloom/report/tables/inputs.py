"""Tabulate the inputs of a study's runs: settings of methods, and sizes of datasets."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from fedloom.common.ids import domain_names
from fedloom.common.key_path import KeyPath
from fedloom.config.output_kinds import Names, OfPaper, RunsTable, TableKind
from fedloom.config.protocols import method_for, study_for
from fedloom.config.settings import KindSpec, OutputEntry, Settings
from fedloom.planning import paths
from fedloom.planning.job_specs import TableJob
from fedloom.report.plotted_runs import PlottedRun
from fedloom.report.tables.layout import EMPTY, FinishedTable, plain_text
from fedloom.report.tables.published import printed_numbers
from fedloom.report.tables.summary import differing_columns

SETTING_COLUMNS = {
    "rounds": "Rounds", "clients": "Clients", "clients_per_round": "In a round",
    "optimizer": "Optimiser", "lr": "Learning rate", "epochs": "Epochs", "batch_size": "Batch",
}  # fmt: skip
SIZES = {
    "classes": "Classes", "train": "Training images", "test": "Test images", "domains": "Domains",
}  # fmt: skip


class Protocol(RunsTable):
    """Rounds, clients and training options of every method; needs no run (PFPT Table 9)."""

    spec = KindSpec(shows="settings")

    def complete(self, settings: Settings, output: OutputEntry, where: KeyPath) -> OutputEntry:
        """Return the table with a row per scenario and method, and without runs."""
        rows = []
        for scenario, label in product(output.scenarios, output.methods):
            # the settings after the changes by the partition's protocol and by the method
            study = study_for(settings, scenario.partition, label)
            method = method_for(settings, scenario.partition, label)
            keys = settings.partitions[scenario.partition].settings

            row = vars(scenario) | {
                "method": label,
                "title": method.title,
                "rounds": study.rounds,
                "clients": str(keys.get("clients", f"{keys.get('clients_per_domain')} per domain")),
                "clients_per_round": study.clients_per_round,
            }
            for key in SETTING_COLUMNS:
                row.setdefault(key, method.training.get(key))
            rows.append(row)
        return replace(output, methods=(), extra={"rows": rows})

    def build(self, runs: list[PlottedRun], job: TableJob) -> FinishedTable:
        frame = pd.DataFrame(job.settings["rows"])
        keys = differing_columns(frame, ["dataset", "partition"])

        # the settings of every row as text
        cells = frame[[*keys, "title"]].copy()
        rows = frame.to_dict("records")
        for name in SETTING_COLUMNS:
            cells[name] = [_setting(row, name, job.published) for row in rows]

        titles = [*map(str.capitalize, keys), "Method", *SETTING_COLUMNS.values()]
        return FinishedTable(
            frame,
            plain_text(cells, len(keys) + 1, titles),
            "rounds, clients and training options of every method.",
        )


def _setting(row: Mapping[Hashable, Any], name: str, entry: dict | None) -> str:
    """Write a setting; add the paper's value in brackets if it differs."""
    text = _text(row[name])
    paper = printed_numbers(entry, f"{row['dataset']}/{row['partition']}", row["method"]).get(name)
    if paper is None:
        return text
    if isinstance(paper, list):
        paper = paper[0]
    other = _text(paper)
    if other == text:
        return text
    return f"{text} ({other})"


def _text(value: Any) -> str:
    """Write a number without needless zeros."""
    if pd.isna(value):
        return EMPTY
    if isinstance(value, int | float):
        return f"{value:g}"
    return str(value)


class PublishedSizes(OfPaper):
    """Numbers of a paper for data sets."""

    rows: Names
    """Maps the label of a dataset to the paper's row."""


class Sizes(TableKind):
    """Images, classes and domains of every dataset (FedPHA Table 6)."""

    spec = KindSpec(shows="datasets")

    published: PublishedSizes | None = None
    """Numbers of a paper beside the measured ones, from workflow/papers/<paper>/numbers.yaml."""

    def build(self, runs: list[PlottedRun], job: TableJob) -> FinishedTable:
        # imported here: the import is slow, and plans do not need it
        from fedloom.data.store import ImageStore

        # the sizes as numbers, and as text with the paper's in brackets
        rows = []
        texts = []
        for dataset in dict.fromkeys(name.split("/")[0] for name in job.shown.scenarios):
            store = ImageStore(paths.path_for(paths.STORE, dataset=dataset))
            sizes = {
                # only classes that have images
                "classes": len(set(store.labels.tolist())),
                "train": int((~store.test).sum()),
                "test": int(store.test.sum()),
                "domains": len(domain_names(store.domains.tolist())),
            }
            rows.append({"dataset": dataset} | sizes)

            paper = printed_numbers(job.published, dataset, dataset)
            cells = {name: str(size) for name, size in sizes.items()}
            for name in SIZES:
                if name in paper:
                    cells[name] += f" ({paper[name][0]})"
            texts.append({"dataset": dataset} | cells)

        shown = plain_text(pd.DataFrame(texts), 1, ["Dataset", *SIZES.values()])
        return FinishedTable(
            pd.DataFrame(rows), shown, "numbers of classes, images and domains of the datasets."
        )
