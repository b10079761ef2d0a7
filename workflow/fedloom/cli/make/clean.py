"""`fedloom clean`: delete results that no given study uses, and the remains of killed jobs."""

import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import click
from rich.filesize import decimal
from tabulate import tabulate

from fedloom.cli.run.launch import exclusive_folder, is_locked
from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table
from fedloom.common.run_tables import RUN_LABELS_SCHEMA
from fedloom.common.temporary import is_abandoned, leftovers, size_in_bytes
from fedloom.planning import paths
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.runs import trial_runs
from fedloom.planning.settings_of_run import transfer_targets

# patterns of the folders and files that are deleted as a whole; logs are never deleted
CACHE_FILES = [paths.CACHE.replace("{cache}", name) for name in ("features", "patches")]
PARENTS = (paths.STORE, paths.PROTOTYPES, paths.TRIALS, paths.TABLE, paths.FIGURE)
UNITS = [
    paths.RUN,
    paths.REPORT,
    paths.RECORD,
    paths.GIVEN,
    paths.BLOCK_ACCURACY,
    str(Path(paths.PARTITION).parent),
    *(str(Path(pattern).parent) for pattern in PARENTS),
    *CACHE_FILES,
    *map(paths.receipt, CACHE_FILES),
]


def clean_results(studies: Sequence[Path], yes: bool) -> None:
    """List the results that none of these studies uses, and delete them if the user agrees.

    With `yes`, the user is not asked.

    Raises:
        FedLoomError: Snakemake works in this folder, or was killed here.
    """
    plans = [load_plan([file]) for file in studies]
    with exclusive_folder():
        if is_locked():
            raise FedLoomError(
                "Snakemake is running in this folder, or was killed; let its run finish, then "
                "clean up"
            )

        found = _find_unused(plans)
        if not found:
            print("nothing to delete: every result belongs to one of these studies")
            return

        # list all of them with their sizes, before the user is asked
        rows = [[decimal(size), path] for path, size in found.items()]
        total = [decimal(sum(found.values())), f"in all: {len(found)} folders and files"]
        print(tabulate([*rows, total], tablefmt="plain", disable_numparse=True))

        if yes or click.confirm("Delete all of these?"):
            for path in found:
                _delete(path)
                for receipt in _receipts(path):
                    _delete(receipt)


def _delete(path: Path) -> None:
    """Delete a file, or a folder with its contents."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _receipts(path: Path) -> list[Path]:
    """Return the receipts of the jobs that made a file, or the files of a folder."""
    candidates = [Path(paths.RECEIPTS, path.relative_to(paths.RESULTS)), paths.job_receipt(path)]
    return [candidate for candidate in candidates if candidate.exists()]


def _find_unused(plans: Sequence[Plan]) -> dict[Path, int]:
    """Return the files and folders of results that none of the studies uses, with their bytes.

    They include all files that killed jobs left half written. The largest come first.
    """
    used = set[Path]()
    for plan in plans:
        used.update(_used(plan))

    # all files and folders that may be results of some study
    present = set[Path]()
    for pattern in UNITS:
        present.update(Path().glob(re.sub(r"{\w+}", "*", pattern)))

    half_written = {path for path in leftovers(Path(paths.RESULTS)) if is_abandoned(path)}
    unused = (present - used) | half_written

    # leave out what lies in an unused folder, which is deleted with its contents
    outermost = {path for path in unused if unused.isdisjoint(path.parents)}
    sizes = {path: size_in_bytes(path) for path in outermost}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _used(plan: Plan) -> Iterator[Path]:
    """Yield the files and folders (UNITS) that a study uses.

    They are those of its runs and trials, of the runs in its record, and of their data.
    """
    settings = plan.settings
    run_labels: list[dict[str, object]] = [vars(run) for run in (*plan.runs, *trial_runs(settings))]

    # if the study ran with --set, its record names runs that its file does not
    record = paths.path_for(paths.RECORD, study=plan.name)
    if record.is_file():
        run_labels += read_table(record, RUN_LABELS_SCHEMA).to_pylist()

    # runs may be tested on other datasets, and the study may have scenarios without runs
    data_labels = list[dict[str, object]]()
    for run in plan.runs:
        for name in transfer_targets(settings, run):
            data_labels.append({"dataset": name, "backbone": run.backbone})
    for scenario, backbone in product(settings.select.scenarios, settings.select.backbones):
        data_labels.append({**vars(scenario), "backbone": backbone})

    # yield each unit whose wildcards the labels and the study's name fill in completely
    for pattern in UNITS:
        fields = set(re.findall(r"{(\w+)}", pattern))
        for labels in (*run_labels, *data_labels):
            if fields <= {*labels, "study"}:
                yield paths.path_for(pattern, **labels, study=plan.name)
