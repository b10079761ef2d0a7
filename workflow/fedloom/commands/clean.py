"""`fedloom clean`: results that no study of a list uses, with their sizes."""

import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal
from tabulate import tabulate

from fedloom.commands.launch import alone, locked
from fedloom.commands.planning import load_plan
from fedloom.common.errors import FedLoomError
from fedloom.common.io import read_table
from fedloom.common.run_tables import LABELS
from fedloom.study import paths
from fedloom.study.make_jobs import transferred_to
from fedloom.study.plan import Plan
from fedloom.study.runs import trial_runs

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
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def unused(plans: Sequence[Plan]) -> dict[Path, int]:
    """Return files and folders of results that none of the studies uses, with their bytes."""
    used = {path for plan in plans for path in _used(plan)}
    there = {path for pattern in UNITS for path in Path().glob(re.sub(r"{\w+}", "*", pattern))}
    files = {path: filter(Path.is_file, (path, *path.rglob("*"))) for path in there - used}
    sizes = {path: sum(file.stat().st_size for file in each) for path, each in files.items()}
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
