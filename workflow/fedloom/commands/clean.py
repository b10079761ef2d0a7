"""`fedloom clean`: results that no study of a list uses, with their sizes."""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tabulate import tabulate

from fedloom.commands.launch import locked, running_snakemake
from fedloom.commands.plan import megabytes
from fedloom.common.errors import FedLoomError
from fedloom.common.io import read_table
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


def check_idle() -> None:
    """Check that no Snakemake uses this folder's results, nor jobs of one that was killed."""
    if running_snakemake() is not None or locked():
        raise FedLoomError(
            "Snakemake works in this folder, or was killed and its jobs may still run; wait for "
            "its end, or begin the study again, and then clean up"
        )


def unused(plans: Sequence[Plan]) -> dict[Path, int]:
    """Return files and folders of results that none of the studies uses, with their bytes."""
    used = {path for plan in plans for path in _used(plan)}
    there = {path for pattern in UNITS for path in Path().glob(re.sub(r"{\w+}", "*", pattern))}
    sizes = {path: _bytes(path) for path in there - used}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _used(plan: Plan) -> Iterator[Path]:
    """Yield the units of a study: its runs and trials, those of its record, and their data."""
    settings = plan.settings
    every: list[dict[str, Any]] = [vars(run) for run in (*plan.runs, *trial_runs(settings))]
    record = paths.at(paths.RECORD, study=plan.name)
    if record.is_file():  # of runs that the file does not name, if it ran with --set
        every += read_table(record).to_pylist()
    for run in plan.runs:
        others = transferred_to(settings, run)
        every += [{"dataset": name, "backbone": run.backbone} for name in others]
    for scenario, backbone in product(settings.select.scenarios, settings.select.backbones):
        every.append(vars(scenario) | {"backbone": backbone})
    for pattern, labels in product(UNITS, every):
        if set(re.findall(r"{(\w+)}", pattern)) <= {*labels, "study"}:
            yield paths.at(pattern, **labels, study=plan.name)


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def listing(found: dict[Path, int]) -> str:
    """Return a line per file or folder, the largest first, and their sum."""
    if not found:
        return "nothing to delete: every result is of one of these studies"
    rows = [[megabytes(size / 1e6), path] for path, size in found.items()]
    total = [megabytes(sum(found.values()) / 1e6), f"in all: {len(found)} folders and files"]
    return tabulate([*rows, total], tablefmt="plain", disable_numparse=True)


def delete(found: Iterable[Path]) -> None:
    """Delete files and folders."""
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
