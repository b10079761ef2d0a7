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
from fedloom.hooks.manifest import TEST_SETS, find
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
    import pyarrow as pa  # takes 0.1 s, and plans need none of it

    every = [*plan.runs, *trial_runs(plan.settings)]
    tested = {*runs(plan.settings, TEST_SETS)}
    files = [paths.path_for(paths.EVALUATION, run) for run in every]
    files += [paths.path_for(paths.ARTEFACT, run, artefact=TEST_SETS) for run in tested]
    if not every or not all(file.is_file() for file in files):
        return  # its tables need no run, or only some of them were asked for
    rows = []
    for run in every:
        made_by = provenance.facts_of_run(run)
        if made_by["settings"] != provenance.digest_of_settings(plan.run_spec(run)):
            line = "%s: made with other settings; study %s is not recorded"
            log.warning(line, run.path, plan.name)
            return
        own = {"sha256": sha256(paths.path_for(paths.EVALUATION, run)), TEST_SETS: run in tested}
        rows.append(vars(run) | _given(plan, run) | made_by | own)
    table = pa.Table.from_pylist(rows)
    file = paths.path_for(paths.RECORD, study=plan.name)
    kept = file.is_file() and read_table(file).equals(table)
    versions = read_facts(file)["versions"] if kept else json.dumps(_versions())
    facts = {"study": plan.name, "settings": _as_yaml(plan), "versions": versions}
    write_table(file, table.replace_schema_metadata(facts))


def read_record(study: str, folder: Path) -> "pa.Table":
    """Return what `write_record` wrote of a study; `folder` holds `results`."""
    file = folder / paths.path_for(paths.RECORD, study=study)
    if not file.is_file():
        known = [other.stem for other in file.parent.glob("*.parquet")]
        hint = f"; {suggestion(study, known)}" if known else ""
        raise FedLoomError(f"{file}: study '{study}' must have finished; run it{hint}")
    from fedloom.common.run_tables import RECORD  # imports pyarrow, which plans need not

    return read_table(file, RECORD)


def _as_yaml(plan: Plan) -> str:
    """Write the merged config, in which inherited keys are as the study has them, as YAML."""
    select = plan.settings.select
    text = io.StringIO()
    shown = {"tables": list(select.tables), "figures": list(select.figures)}
    study = plan.settings.study.model_dump(mode="json", exclude_unset=True)
    YAML().dump(plan.config | {"study": study, "select": plan.config["select"] | shown}, text)
    return text.getvalue()


def _given(plan: Plan, run: Run) -> dict[str, Any]:
    """Return what a run was given, which no seed changes."""
    method = choices.with_choice(plan.run_spec(run)).method
    wrappers = {wrapper.plugin: wrapper.options for wrapper in method.wrappers}
    trained = find(method.plugin).trained
    return {
        "title": plan.settings.methods[run.method].title,
        "options": canonical(method.options | ({"wrappers": wrappers} if wrappers else {})),
        "learning_rate": float(method.training["lr"]) if trained else None,
        "split": "validation" if run.partition.endswith(VALIDATION) else "test",
        "rounds": plan.study(run).rounds,
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


def summary(plan: Plan) -> str:
    """Return the first table and the folders of all results, for the end of a run."""
    lines = [f"logs    {paths.LOGS}"]
    runs = paths.RUN.replace("{", "<").replace("}", ">")
    if not plan.tables or not Path(plan.tables[0]).is_file():
        return lines[0]  # other targets than the study's tables
    lines += [f"runs    {runs}"]
    lines += [f"figures {Path(file).parent}" for file in plan.figures[:1]]
    lines += [f"tables  {Path(plan.tables[0]).parent}", Path(plan.tables[0]).read_text()]
    return "\n".join(reversed(lines))


def failures(since: float) -> str:
    """Return the error lines of the jobs that failed since then, with their logs."""
    logs = [log for log in Path(paths.LOGS).rglob("*.log") if log.stat().st_mtime >= since]
    texts = {log: log.read_text(errors="replace").splitlines() for log in sorted(logs)}
    errors = ((log, line) for log in texts for line in texts[log] if line.startswith("error: "))
    return "\n".join(f"\n{line}\n  in {log}" for log, line in errors)
