"""The record of a finished study: its runs and what each was given, so that no plan is needed."""

import io
import json
import logging
import shutil
import subprocess
from functools import cache
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from fedloom.common import packages
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.io import canonical, read_facts, read_table, write_table
from fedloom.common.receipts import sha256
from fedloom.config.settings import VALIDATION, Settings
from fedloom.hooks.manifest import TEST_SETS, find
from fedloom.study import make_jobs, paths, provenance, selected
from fedloom.study.plan import Plan
from fedloom.study.runs import Run, runs, trial_runs

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


def write_record(plan: Plan) -> None:
    """Write a row per run and per tuning trial of a study, if all of them have finished.

    The columns are those of a Run, then `title`, `options` and `learning_rate` as trained, `split`
    ("test", "validation" of a trial) and `rounds`, and the digests of what the run was made from
    (fedloom.study.provenance) with the sha256 of its evaluations, and whether the study has its
    answers to `test_sets`. The file's metadata has the name
    of the `study`, its `settings` as YAML, and the `versions` of the software as JSON. If the runs
    are those of the record that is there, its versions are kept: they trained nothing since.

    A run that was made with other settings is a line of the log, and nothing is written: Snakemake
    may have been asked for other targets.
    """
    import pyarrow as pa  # takes 0.1 s, and plans need none of it

    settings, every = plan.settings, [*plan.runs, *trial_runs(plan.settings)]
    tested = {*runs(settings, TEST_SETS)}
    files = [paths.at(paths.EVALUATION, run) for run in every]
    files += [paths.at(paths.ARTEFACT, run, artefact=TEST_SETS) for run in tested]
    if not every or not all(file.is_file() for file in files):
        return  # its tables need no run, or only some of them were asked for
    made_by = {run: provenance.facts_of_run(run) for run in every}
    for run, facts in made_by.items():
        if facts["settings"] != provenance.digest_of_settings(plan.run_spec(run)):
            log.warning(
                "%s: made with other settings; study %s is not recorded", run.path, plan.name
            )
            return

    @cache
    def given(*labels: str) -> dict[str, Any]:
        return _given(settings, Run(*labels, seed=0))

    rows = [
        vars(run)
        | given(*list(vars(run).values())[:-1])
        | made_by[run]
        | {"sha256": sha256(paths.at(paths.EVALUATION, run)), TEST_SETS: run in tested}
        for run in every
    ]
    table, file = pa.Table.from_pylist(rows), paths.at(paths.RECORD, study=plan.name)
    before = read_table(file) if file.is_file() else None
    kept = before is not None and before.equals(table)
    versions = read_facts(file)["versions"] if kept else json.dumps(_versions())
    facts = {"study": plan.name, "settings": _as_yaml(plan), "versions": versions}
    write_table(file, table.replace_schema_metadata(facts))


def read_record(study: str, folder: Path) -> "pa.Table":
    """Return what `write_record` wrote of a study; `folder` holds `results`."""
    file = folder / paths.at(paths.RECORD, study=study)
    if not file.is_file():
        known = [other.stem for other in file.parent.glob("*.parquet")]
        hint = f"; {suggestion(study, known)}" if known else ""
        raise FedLoomError(f"{file}: study '{study}' must have finished; run it{hint}")
    return read_table(file)


def _as_yaml(plan: Plan) -> str:
    """Write the merged config, in which inherited keys are as the study has them, as YAML."""
    settings, text = plan.settings, io.StringIO()
    shown = {"tables": list(settings.select.tables), "figures": list(settings.select.figures)}
    study = settings.study.model_dump(mode="json", exclude_unset=True)
    YAML().dump(plan.config | {"study": study, "select": plan.config["select"] | shown}, text)
    return text.getvalue()


def _given(settings: Settings, run: Run) -> dict[str, Any]:
    """Return what a run was given, which no seed changes."""
    method = selected.with_choice(make_jobs.run_spec(settings, run)).method
    wrappers = {wrapper.plugin: wrapper.options for wrapper in method.wrappers}
    trained = find(method.plugin).trained
    return {
        "title": settings.methods[run.method].title,
        "options": canonical(method.options | ({"wrappers": wrappers} if wrappers else {})),
        "learning_rate": float(method.training["lr"]) if trained else None,
        "split": "validation" if run.partition.endswith(VALIDATION) else "test",
        "rounds": make_jobs.study_of_run(settings, run).rounds,
    }


def _versions() -> dict[str, str]:
    """Return the versions of Python, of the packages of jobs, and of this checkout."""
    versions = {"python": python_version()} | packages.versions()
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode == 0:  # git refuses the folder of another user
            versions["commit"] = done.stdout.strip()
    return versions
