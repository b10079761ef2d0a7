"""`fedloom clean`: results that no study of a list uses, and what killed jobs left half written."""

import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal
from tabulate import tabulate

from fedloom.cli.run.launch import alone, locked
from fedloom.common.errors import FedLoomError
from fedloom.common.files import read_table
from fedloom.common.run_tables import LABELS
from fedloom.common.temporary import abandoned, leftovers, size_of
from fedloom.planning import paths
from fedloom.planning.job_factory import transferred_to
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.runs import trial_runs

# patterns of the folders and files that are deleted as a whole; logs are never deleted
CACHES = [paths.CACHE.replace("{cache}", name) for name in ("features", "patches")]
PARENTS = (paths.STORE, paths.PROTOTYPES, paths.TRIALS, paths.TABLE, paths.FIGURE)
UNITS = [
    paths.RUN,
    paths.REPORT,
    paths.RECORD,
    paths.GIVEN,
    paths.BLOCK_ACCURACY,
    str(Path(paths.PARTITION).parent),
    *(str(Path(pattern).parent) for pattern in PARENTS),
    *CACHES,
    *map(paths.receipt, CACHES),
]


def clean(studies: Sequence[Path], yes: bool) -> None:
    """List the results that none of these studies uses, and delete them if the user agrees."""
    plans = [load_plan([file]) for file in studies]
    with alone():
        if locked():
            line = "Snakemake works in this folder, or was killed; finish its run, then clean up"
            raise FedLoomError(line)
        found = unused(plans)
        if not found:
            print("nothing to delete: every result is of one of these studies")
            return
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


def unused(plans: Sequence[Plan]) -> dict[Path, int]:
    """Return files and folders of results that none of the studies uses, with their bytes.

    What killed jobs left half written is among them, wherever it lies.
    """
    used = {path for plan in plans for path in _used(plan)}
    there = {path for pattern in UNITS for path in Path().glob(re.sub(r"{\w+}", "*", pattern))}
    left = {path for path in leftovers(Path(paths.RESULTS)) if abandoned(path)}
    unused = (there - used) | left
    outermost = {path for path in unused if unused.isdisjoint(path.parents)}
    sizes = {path: size_of(path) for path in outermost}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _used(plan: Plan) -> Iterator[Path]:
    """Yield the units of a study: its runs and trials, those of its record, and their data."""
    settings = plan.settings
    every: list[dict[str, Any]] = [vars(run) for run in (*plan.runs, *trial_runs(settings))]
    record = paths.at(paths.RECORD, study=plan.name)
    if record.is_file():  # of runs that the file does not name, if it ran with --set
        every += read_table(record, LABELS).to_pylist()
    for run in plan.runs:
        others = transferred_to(settings, run)
        every += [{"dataset": name, "backbone": run.backbone} for name in others]
    for scenario, backbone in product(settings.select.scenarios, settings.select.backbones):
        every.append(vars(scenario) | {"backbone": backbone})
    for pattern, labels in product(UNITS, every):
        if set(re.findall(r"{(\w+)}", pattern)) <= {*labels, "study"}:
            yield paths.at(pattern, **labels, study=plan.name)
