"""Images, classes and domains of every dataset, a paper's numbers in brackets (FedPHA, Table 6)."""

import pandas as pd

from fedloom.config.output_kinds import PublishedSizes, TableKind
from fedloom.data.store import ImageStore
from fedloom.report.tables.layout import Built, Texts
from fedloom.study import paths
from fedloom.study.jobs import TableJob
from fedloom.study.plot_inputs import ShownRun

TITLES = {
    "classes": "Classes",
    "train": "Training images",
    "test": "Test images",
    "domains": "Domains",
}


class Sizes(TableKind):
    """Images, classes and domains of every dataset (FedPHA Table 6)."""

    shows = "datasets"
    caption = (
        "Classes that have images, images of both splits, and domains, as they are stored. In "
        "brackets the paper's numbers, where the table has some."
    )

    published: PublishedSizes | None = None
    """Numbers of a paper, from workflow/published/<paper>.yaml."""


def measure(store: ImageStore) -> dict[str, int]:
    """Count the classes that have images, the images of both splits, and the domains."""
    return {
        "classes": len(set(store.labels.tolist())),
        "train": int((~store.test).sum()),
        "test": int(store.test.sum()),
        "domains": len(set(store.domains.tolist())),
    }


def build(runs: list[ShownRun], job: TableJob) -> Built:
    """Return a row per dataset, as its images are stored."""
    datasets = dict.fromkeys(scenario.split("/")[0] for scenario in job.shown.scenarios)
    stores = {name: ImageStore(paths.at(paths.STORE, dataset=name)) for name in datasets}
    frame = pd.DataFrame([{"dataset": n} | measure(store) for n, store in stores.items()])
    cells = frame[["dataset"]].copy()
    for name in TITLES:
        cells[name] = [_cell(row, name, job.published) for row in frame.to_dict("records")]
    marks = pd.DataFrame("", index=cells.index, columns=cells.columns)
    text = f"{job.title or f'Study {job.study}'}: sizes of the datasets"
    if job.published is not None:
        source = f"{job.published['citation']}, Table {job.published['table']}"
        text += f"; in brackets those of {source}"
    return Built(frame, Texts(cells, marks, ["Dataset", *TITLES.values()], 1), f"{text}.")


def _cell(row: dict, name: str, entry: dict | None) -> str:
    """Write a count, and the paper's in brackets."""
    printed = {}
    if entry is not None:
        columns = entry["values"].get(entry["rows"].get(row["dataset"]), {})
        printed = next(iter(columns.values()), {})
    return f"{row[name]}" + (f" ({printed[name][0]})" if name in printed else "")
