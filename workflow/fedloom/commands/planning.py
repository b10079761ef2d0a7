"""Plans of studies, made with the kinds of entry that all rooms of the library have."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

from fedloom.common.checkout import ROOT, resource
from fedloom.common.errors import FedLoomError
from fedloom.common.extras import require
from fedloom.common.folders import check_usable, is_folder
from fedloom.config import kind_plugins
from fedloom.config.changes import Change, origin, read_change
from fedloom.config.kind_plugins import WithPlugins
from fedloom.config.kinds import Catalogue
from fedloom.config.reading import merge, merge_values, read_all
from fedloom.config.resolve import resolve_with
from fedloom.config.settings import Settings
from fedloom.data.entries import SOURCES
from fedloom.hooks.manifest import find
from fedloom.report import figures, tables
from fedloom.study import paths, staleness
from fedloom.study.plan import Plan

CONFIG = ROOT / "config.yaml"
OWN = Path("config.yaml")  # of the current folder; in a checkout it is the default
SET = "set"  # the key of `overrides` that holds "key=value" for each change
LAUNCHER = "FEDLOOM_LAUNCHER"  # set where `make run`, not Snakemake, prints the table at the end
KINDS: Catalogue = {
    "datasets": SOURCES,
    "partitions": WithPlugins("scheme"),
    "tables": tables.KINDS,
    "figures": figures.KINDS,
}


def load_plan(files: Sequence[Path] = (), overrides: Mapping[str, Any] | None = None) -> Plan:
    """Read a study as `read_plan` does, whose backbones' packages must be there."""
    plan = read_plan(files, overrides)
    for label in plan.settings.select.backbones:
        require(plan.settings.backbones[label].library)
    return plan


def read_plan(files: Sequence[Path] = (), overrides: Mapping[str, Any] | None = None) -> Plan:
    """Read config.yaml and the study's files over it, then `overrides` (Snakemake's --config).

    Their key `set` is a list of changes, as "study.rounds=4", which Snakemake hands on to all jobs
    unchanged, while it makes text of the numbers in a mapping. Files that a file includes are read
    before it.
    """
    check_usable(Path(paths.RESULTS))
    _warn_of_broken_plugins()
    contents, given = read_all([*files_below(files), *map(Path, files)]), dict(overrides or {})
    changes = [read_change(text) for text in given.pop(SET, ())]
    for keys, value, _ in changes:
        given = merge_values(given, reduce(lambda inner, key: {key: inner}, keys[::-1], value))
    own = given or merge(contents[1:]) or None
    merged, read = merge(contents, given), [path for path, _ in contents]
    settings = resolve(merged, read, changes, own)
    for note in settings.notes if LAUNCHER not in os.environ else ():
        print(f"note: {note}", file=sys.stderr)
    for label in settings.select.methods:  # a file that is not Python is an error here
        plugin = find(settings.methods[label].plugin)
        staleness.files_of(staleness.Code((), (plugin,)))
    return Plan(settings, merged, tuple(read), tuple(changes))


def check_images(plan: Plan) -> None:
    """Check that the folders of local images are there, before a job that reads them fails.

    A plan alone needs none of them, nor does a study whose images are stored already.
    """
    for label in plan.settings.select.datasets:
        entry, key = plan.settings.datasets[label].settings, f"datasets.{label}.root"
        store = paths.at(paths.STORE, dataset=label)
        if "root" not in entry or entry.get("download") or store.exists():
            continue
        if not is_folder(resource(entry["root"])):
            line = f"config key {key}: no such folder '{entry['root']}'; put the images there"
            where = origin(FedLoomError(line), plan.files, plan.changes)
            raise FedLoomError(f"{line}, or change the key{where}")


def files_below(files: Sequence[Path], folder: Path = Path()) -> list[Path]:
    """Return the files that a study's files are read over: the default study and a folder's OWN.

    A bundled study is read without OWN, so that it is the same everywhere.
    """
    own = folder / OWN
    bundled = any(Path(file).resolve().is_relative_to(ROOT / "workflow") for file in files)
    return [CONFIG] if bundled or not own.exists() else [CONFIG, own]


def resolve(
    merged: dict[str, Any],
    files: Iterable[Path] = (),
    changes: Iterable[Change] = (),
    own: dict[str, Any] | None = None,
) -> Settings:
    """Check a merged config, and return its labels with the settings behind them.

    An error names the place in the files that the config was read from, or the change of a key.
    `own` is what the study sets itself, or the command line; by default all.
    """
    try:
        return resolve_with(merged, KINDS, own)
    except FedLoomError as error:
        raise FedLoomError(f"{error}{origin(error, files, changes)}") from None


@cache
def _warn_of_broken_plugins() -> None:
    """Name the plugins that cannot be used, which is an error where a study uses them.

    Once per process, and not again in the Snakemake that the launcher starts.
    """
    if LAUNCHER not in os.environ:
        for name, error in kind_plugins.broken().items():
            print(f"warning: {error}; plugin '{name}' cannot be used", file=sys.stderr)
