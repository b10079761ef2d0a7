"""`fedloom export`: all evaluations of a study in one file, with a README, for a supplement."""

import json
from os import PathLike
from pathlib import Path

from fedloom.commands.results import record_of
from fedloom.common.io import write_table, write_text
from fedloom.study import paths

ROWS = "results.parquet"
README = """\
# Results of the study {study}

`{file}` holds {rows:,} rows of {runs:,} runs, without tuning trials: a row per run, evaluated
round, client and group. `pandas.read_parquet("{file}")` reads it, and so do R's arrow and DuckDB.

| column | meaning |
|---|---|
{columns}

## How they were made

By FedLoom, from the settings below, with these versions: {versions}.

```yaml
{settings}
```
"""


def export(study: str | PathLike | None = None, folder: str | PathLike | None = None) -> Path:
    """Write the evaluations of a finished study as results.parquet, and a README.md, into a folder.

    Args:
        study: its name, its file, or a name that `fedloom studies` prints; default: config.yaml. It
            ran in the current folder.
        folder: default: results/export/<study>.

    Returns:
        The folder.
    """
    record = record_of(study, Path())  # a mistyped name is an error before any slow import
    import pyarrow as pa

    from fedloom.report.tidy import COLUMNS, frame, with_files

    facts = {key.decode(): value.decode() for key, value in record.schema.metadata.items()}
    name, versions = facts["study"], json.loads(facts["versions"])
    out = paths.at(paths.EXPORT, study=name) if folder is None else Path(folder)
    runs = with_files(record, Path(), trials=False)
    rows = frame(runs)
    write_table(out / ROWS, pa.Table.from_pandas(rows, preserve_index=False))
    text = README.format(
        study=name,
        file=ROWS,
        rows=len(rows),
        runs=runs.index.nunique(),
        columns="\n".join(f"| {name} | {meaning} |" for name, meaning in COLUMNS.items()),
        versions=", ".join(f"{package} {version}" for package, version in versions.items()),
        settings=facts["settings"].strip(),
    )
    write_text(out / "README.md", text)
    return out
