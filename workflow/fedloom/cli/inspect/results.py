"""`fedloom.results`, `scan` and `export`: the evaluations of a study that has finished."""

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.cli.run.bundled_studies import file_of
from fedloom.common.files import write_table, write_text
from fedloom.config.reading import merge, read_all
from fedloom.planning import paths
from fedloom.planning.load_plan import files_below
from fedloom.planning.records import read_record

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from duckdb import DuckDBPyRelation

README = """\
# Results of the study {study}

`results.parquet` holds {rows:,} rows of {runs:,} runs, without tuning trials: a row per run,
evaluated round, client and group. Pandas, R's arrow and DuckDB read it.

| column | meaning |
|---|---|
{columns}

## How they were made

By FedLoom, from the settings below, with these versions: {versions}.

```yaml
{settings}
```
"""


def results(
    study: str | PathLike | None = None, folder: str | PathLike = ".", trials: bool = False
) -> "pd.DataFrame":
    """Return a row per run, evaluated round, client and group of a finished study.

    The README that `export` writes explains the columns. Tables show the groups "participating"
    and "held_out".

    Args:
        study: its name (`study.name`), its file, or a name that `fedloom studies` prints; default:
            config.yaml.
        folder: where it ran: the folder that holds `results`.
        trials: return its tuning trials instead of its runs.
    """
    record = record_of(study, Path(folder))

    # takes seconds, which an error of a name need not wait for
    from fedloom.report.tidy import frame, with_files

    return frame(with_files(record, Path(folder), trials))


def scan(
    study: str | PathLike | None = None, folder: str | PathLike = ".", trials: bool = False
) -> "DuckDBPyRelation":
    """Return what `results` returns as a relation of DuckDB, for more rows than memory holds.

    It reads the files when it is asked: `fedloom.scan().aggregate("title, avg(accuracy)").df()`.
    In SQL the column "group" needs its double quotes. The order of the rows is not defined.
    """
    record = record_of(study, Path(folder))

    # takes seconds, which an error of a name need not wait for
    from fedloom.report.tidy import relation, with_files

    return relation(with_files(record, Path(folder), trials))


def export(study: str | PathLike | None = None, folder: str | PathLike | None = None) -> Path:
    """Write the evaluations of a finished study as results.parquet, and a README.md, into a folder.

    Args:
        study: as in `results`; it ran in the current folder.
        folder: is made and returned; default: results/export/<study>.
    """
    record = record_of(study, Path())

    # these take seconds, which an error of a name need not wait for
    import pyarrow as pa

    from fedloom.report.tidy import TIDY_COLUMNS, frame, with_files

    # what the record says of the study
    facts = {key.decode(): value.decode() for key, value in record.schema.metadata.items()}
    name = facts["study"]
    versions = json.loads(facts["versions"])

    # the evaluations
    out = Path(folder or paths.path_for(paths.EXPORT, study=name))
    runs = with_files(record, Path(), trials=False)
    rows = frame(runs)
    write_table(out / "results.parquet", pa.Table.from_pandas(rows, preserve_index=False))

    # what they are, and how they were made
    columns = [f"| {column} | {meaning} |" for column, meaning in TIDY_COLUMNS.items()]
    packages = [f"{package} {version}" for package, version in versions.items()]
    text = README.format(
        study=name,
        rows=len(rows),
        runs=runs.index.nunique(),
        columns="\n".join(columns),
        versions=", ".join(packages),
        settings=facts["settings"].strip(),
    )
    write_text(out / "README.md", text)
    return out


def record_of(study: str | PathLike | None, folder: Path) -> "pa.Table":
    """Return the record of a finished study, whose file may lie in the folder."""
    # a plain name is that in the record
    files = list[Path]()
    if study is not None:
        name = str(study)
        if "/" not in name and not name.endswith((".yaml", ".yml")):
            return read_record(name, folder)

        # any other is that of a file, of the folder or of a study that ships
        file = folder / name
        if not file.is_file():
            file = file_of(name)
        files.append(file)

    # the file, or config.yaml, says how the study is called
    contents = read_all([*files_below(files, folder), *files])
    return read_record(merge(contents)["study"]["name"], folder)
