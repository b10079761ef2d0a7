"""`fedloom.results` and `fedloom.scan`: the evaluations of a study that has finished."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.commands.bundled_studies import file_of
from fedloom.commands.planning import files_below
from fedloom.config.reading import merge, read_all
from fedloom.study.records import read_record

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from duckdb import DuckDBPyRelation


def results(
    study: str | PathLike | None = None, folder: str | PathLike = ".", trials: bool = False
) -> "pd.DataFrame":
    """Return a row per run, evaluated round, client and group of a finished study.

    The columns are title, method, options, learning_rate, dataset, partition, backbone, seed,
    round, client, domain, group, split, correct, total, accuracy (percent) and loss; the README
    that `export` writes explains each. Tables show group "participating" or "held_out".

    Args:
        study: its name (`study.name`), its file, or a name that `fedloom studies` prints; default:
            config.yaml.
        folder: where it ran: the folder that holds `results`.
        trials: return its tuning trials instead of its runs.
    """
    record = record_of(study, Path(folder))
    from fedloom.report.tidy import frame, with_files  # after an error of a name: it takes seconds

    return frame(with_files(record, Path(folder), trials))


def scan(
    study: str | PathLike | None = None, folder: str | PathLike = ".", trials: bool = False
) -> "DuckDBPyRelation":
    """Return what `results` returns as a relation of DuckDB, for more rows than memory holds.

    It reads the files when it is asked: `fedloom.scan().aggregate("title, avg(accuracy)").df()`.
    In SQL the column "group" needs its double quotes. The order of the rows is not defined.
    """
    record = record_of(study, Path(folder))
    from fedloom.report.tidy import relation, with_files

    return relation(with_files(record, Path(folder), trials))


def record_of(study: str | PathLike | None, folder: Path) -> "pa.Table":
    """Return the record of a finished study, see fedloom.study.records.

    A file that is not there is looked for in the folder too, as `fedloom.run` finds it.
    """
    name = "" if study is None else str(study)
    files = list[Path]()
    if "/" in name or name.endswith((".yaml", ".yml")):
        inside = not Path(name).is_file() and (folder / name).is_file()
        files = [folder / name if inside else file_of(name)]
    if files or study is None:
        name = merge(read_all([*files_below(files, folder), *files]))["study"]["name"]
    return read_record(name, folder)
