"""What a study's run ends with: its record, which needs no plan, and its last lines."""

import io
import json
import logging
import shutil
import subprocess
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.files import canonical, read_facts, read_table, write_table
from fedloom.common.receipts import sha256
from fedloom.config.settings import VALIDATION
from fedloom.hooks.manifest import TEST_SETS, find_method
from fedloom.machine import packages
from fedloom.machine.install import ROOT
from fedloom.planning import choices, paths, provenance
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.planning.runs import runs, trial_runs

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


def write_record(plan: Plan) -> None:
    """Write a row per run and per tuning trial of a study, if all of them have finished.

    The columns are those of a Run, of `_given`, and the digests of what the run was made from, with
    the sha256 of its evaluations, and whether the study has its answers to `test_sets`. The file's
    metadata has the `study`, its `settings` as YAML, and `versions` as JSON, which stay if no run
    was trained since. Nothing is written if a run was made with other settings.
    """
    # takes 0.1 s, and plans need none of it
    import pyarrow as pa

    # all results must be there: a table may need no run, or the user asked for some tables alone
    every = [*plan.runs, *trial_runs(plan.settings)]
    tested = {*runs(plan.settings, TEST_SETS)}
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
    if file.is_file() and read_table(file).equals(table):
        versions = read_facts(file)["versions"]
    else:
        versions = json.dumps(_versions())

    facts = {"study": plan.name, "settings": _as_yaml(plan), "versions": versions}
    write_table(file, table.replace_schema_metadata(facts))


def read_record(study: str, folder: Path) -> "pa.Table":
    """Return what `write_record` wrote of a study; `folder` holds `results`."""
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


def _as_yaml(plan: Plan) -> str:
    """Write the merged config, in which inherited keys are as the study has them, as YAML."""
    content = dict(plan.config)
    content["study"] = plan.settings.study.model_dump(mode="json", exclude_unset=True)

    # the tables and figures that are selected, by default all
    select = dict(plan.config["select"])
    select["tables"] = list(plan.settings.select.tables)
    select["figures"] = list(plan.settings.select.figures)
    content["select"] = select

    text = io.StringIO()
    YAML().dump(content, text)
    return text.getvalue()


def _given(plan: Plan, run: Run) -> dict[str, Any]:
    """Return what a run was given, which no seed changes."""
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

    # trials are evaluated on training images that their clients held back
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
    """Return the versions of Python, of the packages of jobs, and of this checkout."""
    versions = {"python": python_version()} | packages.versions()
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        # git refuses the folder of another user
        if done.returncode == 0:
            versions["commit"] = done.stdout.strip()
    return versions


def summary(plan: Plan) -> str:
    """Return the first table and the folders of all results, for the end of a run."""
    logs = f"logs    {paths.LOGS}"

    # a run of other targets than the study's tables has logs alone
    if not plan.tables or not Path(plan.tables[0]).is_file():
        return logs

    table = Path(plan.tables[0])
    lines = [table.read_text(), f"tables  {table.parent}"]
    lines += [f"figures {Path(file).parent}" for file in plan.figures[:1]]
    runs = paths.RUN.replace("{", "<").replace("}", ">")
    lines += [f"runs    {runs}", logs]
    return "\n".join(lines)


def failures(since: float) -> str:
    """Return the error lines of the jobs that failed since then, with their logs."""
    logs = [log for log in Path(paths.LOGS).rglob("*.log") if log.stat().st_mtime >= since]
    errors = list[str]()
    for log in sorted(logs):
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("error: "):
                errors.append(f"\n{line}\n  in {log}")
    return "\n".join(errors)
