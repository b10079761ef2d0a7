"""What a study's runs are given: settings of every method, and sizes of the data sets.

Neither table needs a run. Brackets hold a paper's numbers.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from fedloom.config.output_kinds import Names, OfPaper, RunsTable, TableKind
from fedloom.config.protocols import method_of, study_of
from fedloom.config.settings import Output, Settings
from fedloom.report.tables.layout import EMPTY, Built, unmarked
from fedloom.report.tables.published import printed, source
from fedloom.report.tables.summary import varied
from fedloom.study import paths
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import PlottedRun

SETTINGS = {
    "rounds": "Rounds",
    "clients": "Clients",
    "clients_per_round": "In a round",
    "optimizer": "Optimiser",
    "lr": "Learning rate",
    "epochs": "Epochs",
    "batch_size": "Batch",
}
SIZES = {
    "classes": "Classes",
    "train": "Training images",
    "test": "Test images",
    "domains": "Domains",
}


class Protocol(RunsTable):
    """Settings of every method, without any run (PFPT Table 9)."""

    shows = "settings"

    def complete(self, settings: Settings, output: Output, where: str) -> Output:
        """Return the table with a row per scenario and method; it needs no runs."""
        rows = []
        for scenario, label in product(output.scenarios, output.methods):
            study = study_of(settings, scenario.partition, label)
            method = method_of(settings, scenario.partition, label)
            keys = settings.partitions[scenario.partition].settings
            row = vars(scenario) | {
                "method": label,
                "title": method.title,
                "rounds": study.rounds,
                "clients": str(keys.get("clients", f"{keys.get('clients_per_domain')} per domain")),
                "clients_per_round": study.clients_per_round,
            }
            training = ("optimizer", "lr", "epochs", "batch_size")
            rows.append(row | {key: method.training.get(key) for key in training})
        return replace(output, methods=(), extra={"rows": rows})

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return a row per scenario and method, as the study has them."""
        frame = pd.DataFrame(job.settings["rows"])
        frame["clients"] = frame["clients"].astype(str)
        keys = varied(frame, ["dataset", "partition"])
        cells = frame[[*keys, "title"]].copy()
        for name in SETTINGS:
            cells[name] = [_setting(row, name, job.published) for row in frame.to_dict("records")]
        titles = [*map(str.capitalize, keys), "Method", *SETTINGS.values()]
        text = "settings of every method"
        if job.published is not None:
            text += f"; in brackets those of {source(job.published)}, where they differ"
        return Built(frame, unmarked(cells, titles, len(keys) + 1), f"{text}.")


def _setting(row: dict[Any, Any], name: str, entry: dict | None) -> str:
    """Write a setting, and the paper's in brackets if it is another one."""
    text = EMPTY if pd.isna(row[name]) else _text(row[name])
    paper = printed(entry, f"{row['dataset']}/{row['partition']}", row["method"]).get(name)
    if paper is None:
        return text
    other = _text(paper[0] if isinstance(paper, list) else paper)
    return text if other == text else f"{text} ({other})"


def _text(value: Any) -> str:
    """Write a number without needless zeros."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


class PublishedSizes(OfPaper):
    """Numbers of a paper for data sets."""

    rows: Names
    """Dataset label -> the paper's row."""


class Sizes(TableKind):
    """Images, classes and domains of every dataset (FedPHA Table 6)."""

    shows = "datasets"

    published: PublishedSizes | None = None
    """Numbers of a paper, from workflow/published/<paper>.yaml."""

    def build(self, runs: list[PlottedRun], job: TableJob) -> Built:
        """Return a row per dataset, as its images are stored."""
        from fedloom.data.store import ImageStore  # slow to import, and plans need none

        datasets = dict.fromkeys(scenario.split("/")[0] for scenario in job.shown.scenarios)
        rows, texts = [], []
        for dataset in datasets:
            store = ImageStore(paths.at(paths.STORE, dataset=dataset))
            sizes = {
                "classes": len(set(store.labels.tolist())),  # of those that have images
                "train": int((~store.test).sum()),
                "test": int(store.test.sum()),
                "domains": len(set(store.domains.tolist())),
            }
            paper = printed(job.published, dataset, dataset)
            brackets = {name: f" ({paper[name][0]})" for name in SIZES if name in paper}
            rows.append({"dataset": dataset} | sizes)
            texts.append([dataset, *(f"{sizes[name]}{brackets.get(name, '')}" for name in SIZES)])
        text = "sizes of the datasets"
        if job.published is not None:
            text += f"; in brackets those of {source(job.published)}"
        cells = pd.DataFrame(texts, columns=["dataset", *SIZES])
        shown = unmarked(cells, ["Dataset", *SIZES.values()], 1)
        return Built(pd.DataFrame(rows), shown, f"{text}.")
