"""`fedloom.results`, `scan` and `export`: read the evaluations of a study that has finished."""

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.cli.run.bundled_studies import find_study_file
from fedloom.common.files import write_table, write_text
from fedloom.config.reading import merge_configs, read_all
from fedloom.planning import paths
from fedloom.planning.load_plan import inherited_config_files
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
        study: the study's name (`study.name`), its file, or a name that `fedloom studies` prints;
            default: config.yaml.
        folder: the folder in which the study ran, and which holds `results`.
        trials: return the study's tuning trials instead of its runs.

    Raises:
        FedLoomError: the study has not finished in this folder.
    """
    record = _find_record(study, Path(folder))

    # this import takes seconds, and comes after an error about the study
    from fedloom.report.tidy import tidy_frame, with_files

    return tidy_frame(with_files(record, Path(folder), trials))


def scan(
    study: str | PathLike | None = None, folder: str | PathLike = ".", trials: bool = False
) -> "DuckDBPyRelation":
    """Return the rows of `results` as a relation of DuckDB, for more rows than memory holds.

    The relation reads the files only when it is queried, as in
    `fedloom.scan().aggregate("title, avg(accuracy)").df()`. In SQL, the column "group" needs its
    double quotes. The order of the rows is not defined. The arguments are those of `results`.
    """
    record = _find_record(study, Path(folder))

    # this import takes seconds, and comes after an error about the study
    from fedloom.report.tidy import relation, with_files

    return relation(with_files(record, Path(folder), trials))


def export(study: str | PathLike | None = None, folder: str | PathLike | None = None) -> Path:
    """Write the evaluations of a finished study as results.parquet, and a README.md, into a folder.

    Args:
        study: as in `results`; the study must have run in the current folder.
        folder: the folder, which is made and returned; default: results/export/<study>.
    """
    record = _find_record(study, Path())

    # these imports take seconds, and come after an error about the study
    import pyarrow as pa

    from fedloom.report.tidy import TIDY_COLUMNS, tidy_frame, with_files

    # read what the record says about the study
    metadata = {key.decode(): value.decode() for key, value in record.schema.metadata.items()}
    name = metadata["study"]
    versions = json.loads(metadata["versions"])

    # write the evaluations
    out = Path(folder or paths.path_for(paths.EXPORT, study=name))
    runs = with_files(record, Path(), trials=False)
    rows = tidy_frame(runs)
    write_table(out / "results.parquet", pa.Table.from_pandas(rows, preserve_index=False))

    # write a README on what they are, and on how they were made
    columns = [f"| {column} | {meaning} |" for column, meaning in TIDY_COLUMNS.items()]
    packages = [f"{package} {version}" for package, version in versions.items()]
    text = README.format(
        study=name,
        rows=len(rows),
        runs=runs.index.nunique(),
        columns="\n".join(columns),
        versions=", ".join(packages),
        settings=metadata["settings"].strip(),
    )
    write_text(out / "README.md", text)
    return out


def _find_record(study: str | PathLike | None, folder: Path) -> "pa.Table":
    """Return the record of a finished study.

    Args:
        study: the study's name, its file, or a name that `fedloom studies` prints; default:
            config.yaml.
        folder: the folder that holds `results`; the path of the study's file may begin there.

    Raises:
        FedLoomError: there is no such study, or it has not finished.
    """
    # a plain word is the study's name, which its record has
    files = list[Path]()
    if study is not None:
        name = str(study)
        if "/" not in name and not name.endswith((".yaml", ".yml")):
            return read_record(name, folder)

        # any other text names a file in the folder, or a study that ships
        file = folder / name
        if not file.is_file():
            file = find_study_file(name)
        files.append(file)

    # the file, or config.yaml, has the study's name
    contents = read_all([*inherited_config_files(files, folder), *files])
    return read_record(merge_configs(contents)["study"]["name"], folder)
