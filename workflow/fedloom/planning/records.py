"""Write what a study ends with: its record, and the last lines on the terminal.

Later commands read the record, and need no plan of the study.
"""

import io
import json
import logging
import shutil
import subprocess
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.files import canonical, read_metadata, read_table, write_table
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import sha256
from fedloom.config.narrowing import in_words
from fedloom.config.settings import VALIDATION
from fedloom.hooks.manifest import TEST_SETS, find_method
from fedloom.machine import packages
from fedloom.machine.install import ROOT
from fedloom.planning import choices, paths, provenance
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.planning.runs import study_runs, trial_runs

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


def write_record(plan: Plan) -> None:
    """Write the record of a study, if all of its runs and tuning trials have finished.

    The record is a table with a row for each run and each trial. Its columns are:

    - the labels of the run, and what it was given (see `_given`);
    - the digests of what it was made from, and the sha256 of its evaluations;
    - whether the study has the artefact `test_sets` of the run.

    The metadata of the file has the name of the `study`, its `settings` as YAML, and `versions` of
    packages as JSON. The versions stay as they are if no run was trained since. If a run was made
    with other settings, the record is not written.

    If the study is narrowed (`--only`), a record that has its runs as they are, and more, stays: it
    is that of the whole study, or of a larger part.
    """
    # imported here, since it takes 0.1 s and plans do not need it
    import pyarrow as pa

    # Results may be missing: a table may need no run, or the user may have asked for some tables
    # only.
    every = [*plan.runs, *trial_runs(plan.settings)]
    tested = {*study_runs(plan.settings, TEST_SETS)}
    files = [paths.path_for(paths.EVALUATION, run) for run in every]
    files += [paths.path_for(paths.ARTEFACT, run, artefact=TEST_SETS) for run in tested]
    if not every or not all(file.is_file() for file in files):
        return

    rows = []
    for run in every:
        made_by = provenance.facts_of_run(run)
        if made_by["settings"] != provenance.digest_of_settings(plan.run_spec(run)):
            line = "%s: made with other settings; study %s is not recorded"
            log.warning(line, run.path, plan.name)
            return

        row = vars(run) | _given(plan, run) | made_by
        row["sha256"] = sha256(paths.path_for(paths.EVALUATION, run))
        row[TEST_SETS] = run in tested
        rows.append(row)
    table = pa.Table.from_pylist(rows)

    # the versions are those that trained the runs, so they stay with the same rows
    file = paths.path_for(paths.RECORD, study=plan.name)
    versions = json.dumps(_versions())
    if file.is_file():
        before = read_table(file)
        if before.equals(table):
            versions = read_metadata(file)["versions"]
        elif plan.settings.narrowing and _has_rows(before, rows):
            return

    metadata = {"study": plan.name, "settings": _as_yaml(plan), "versions": versions}
    write_table(file, table.replace_schema_metadata(metadata))


def _has_rows(record: "pa.Table", rows: list[JsonDict]) -> bool:
    """Return True if a record has all rows; each may also have the artefact `test_sets` there."""
    recorded = record.to_pylist()
    return all(row in recorded or row | {TEST_SETS: True} in recorded for row in rows)


def read_record(study: str, folder: Path) -> "pa.Table":
    """Return the record that `write_record` wrote; `folder` holds `results`.

    Raises:
        FedLoomError: the study has no record, as it has not finished.
    """
    file = folder / paths.path_for(paths.RECORD, study=study)
    if not file.is_file():
        hint = ""
        known = [other.stem for other in file.parent.glob("*.parquet")]
        if known:
            hint = f"; {suggestion(study, known)}"
        raise FedLoomError(f"{file}: study '{study}' must have finished; run it{hint}")

    # imports pyarrow, which plans do not need
    from fedloom.common.run_tables import RECORD_SCHEMA

    return read_table(file, RECORD_SCHEMA)


def find_config(run: Run, folder: Path) -> JsonDict | None:
    """Return the merged config of a finished study that has a run as it is now; None without one.

    The run may be part of several studies, whose configs then mean the same by its labels. `folder`
    holds `results`.
    """
    if not (folder / paths.path_for(paths.EVALUATION, run)).is_file():
        return None
    row = vars(run) | provenance.facts_of_run(run, folder)
    of_any_study = folder / paths.path_for(paths.RECORD, study="any")
    for file in sorted(of_any_study.parent.glob("*.parquet")):
        if any(row.items() <= other.items() for other in read_table(file).to_pylist()):
            return YAML(typ="safe").load(read_metadata(file)["settings"])
    return None


def _as_yaml(plan: Plan) -> str:
    """Return the merged config as YAML, with the values of inherited keys that the study has.

    If the study is narrowed, it is the config of the whole study, below a comment that says so.
    """
    settings = plan.settings.whole or plan.settings
    content = dict(plan.config)
    content["study"] = settings.study.model_dump(mode="json", exclude_unset=True)

    # the tables and figures that the study has
    select = dict(plan.config["select"])
    select["tables"] = list(settings.select.tables)
    select["figures"] = list(settings.select.figures)
    content["select"] = select

    text = io.StringIO()
    if plan.settings.narrowing:
        text.write(f"# narrowed to {in_words(plan.settings.narrowing)} (--only)\n")
    YAML().dump(content, text)
    return text.getvalue()


def _given(plan: Plan, run: Run) -> dict[str, str | float | None]:
    """Return a run's title, options, learning rate, split and rounds; no seed changes these."""
    method = choices.with_choice(plan.run_spec(run)).method

    # options of wrappers stand beside the method's own
    options = dict(method.options)
    wrappers = {wrapper.plugin: wrapper.options for wrapper in method.wrappers}
    if wrappers:
        options["wrappers"] = wrappers

    # a method without training has no learning rate
    learning_rate = None
    if find_method(method.plugin).trained:
        learning_rate = float(method.training["lr"])

    # a trial is evaluated on training images that its clients held back
    split = "test"
    if run.partition.endswith(VALIDATION):
        split = "validation"

    return {
        "title": plan.settings.methods[run.method].title,
        "options": canonical(options),
        "learning_rate": learning_rate,
        "split": split,
        "rounds": plan.study(run).rounds,
    }


def _versions() -> dict[str, str]:
    """Return the versions of Python and of jobs' packages, and the commit of this checkout."""
    versions = {"python": python_version()} | packages.versions()
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        # git refuses the folder of another user
        if done.returncode == 0:
            versions["commit"] = done.stdout.strip()
    return versions


def summary_of_results(plan: Plan) -> str:
    """Return what a run ends with: the first table, or else the figures, and folders of results.

    Only results that exist are named: the user may have asked for some of them only.
    """
    tables = [Path(file) for file in plan.tables if Path(file).is_file()]
    figures = [Path(file).with_suffix(".png") for file in plan.figures if Path(file).is_file()]

    lines = list[str]()
    if tables:
        lines += [tables[0].read_text(), f"tables  {tables[0].parent}"]
        lines += [f"figures {file.parent}" for file in figures[:1]]
    else:
        lines += [f"figure  {file}" for file in figures]

    if lines and plan.runs:
        lines.append(f"runs    {paths.RUN.replace('{', '<').replace('}', '>')}")
    return "\n".join([*lines, f"logs    {paths.LOGS}"])


def failures(since: float) -> str:
    """Return the error lines of the jobs that failed, each with the name of its log.

    Only logs that were written after `since` (in seconds since 1970) are read.
    """
    logs = [log for log in Path(paths.LOGS).rglob("*.log") if log.stat().st_mtime >= since]
    errors = list[str]()
    for log in sorted(logs):
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("error: "):
                errors.append(f"\n{line}\n  in {log}")
    return "\n".join(errors)
