"""The trials of a method, and the options that rule `choose` wrote for it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.common.files import read_table
from fedloom.common.schema import is_number
from fedloom.config import grids
from fedloom.config.settings import VALIDATION, Trial
from fedloom.planning import paths
from fedloom.planning.job_specs import ChooseJob, RunSpec
from fedloom.planning.run_labels import Run


def evaluations(job: ChooseJob) -> list[tuple[Trial, Path]]:
    """Return every trial with its evaluation.parquet."""
    labels = job.dataset, job.partition + VALIDATION, job.backbone
    runs = [(trial, Run(*labels, trial.label, job.seed)) for trial in job.trials]
    return [(trial, paths.path_for(paths.EVALUATION, run)) for trial, run in runs]


def chosen_options(file: Path) -> dict[str, Any]:
    """Read the options of the chosen trial, `training.` before those of training."""
    from fedloom.common.run_tables import CHOICE  # imports pyarrow, which plans need not

    return json.loads(read_table(file, CHOICE)["options"][0].as_py())


def read_trials(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the options of the chosen trial and of all trials from trials.parquet."""
    from fedloom.common.run_tables import TRIALS

    rows = read_table(file, TRIALS).to_pylist()
    (best,) = (row["options"] for row in rows if row["chosen"])
    return json.loads(best), [json.loads(row["options"]) for row in rows]


def at_edge(chosen: dict[str, Any], trials: list[dict[str, Any]]) -> dict[str, str]:
    """Return the options whose chosen number is the lowest or highest tried, and which it is."""
    edges = {}
    for name, value in chosen.items():
        numbers = {each[name] for each in trials if is_number(each[name])}
        if is_number(value) and len(numbers) > 1 and value in (min(numbers), max(numbers)):
            edges[name] = "lowest" if value == min(numbers) else "highest"
    return edges


def with_choice(spec: RunSpec) -> RunSpec:
    """Return the spec with the chosen options, if it is tuned (errors: see chosen_options)."""
    if not spec.tuned:
        return spec
    own, training = grids.split_training_options(
        chosen_options(paths.path_for(paths.CHOICE, spec.run))
    )
    options = spec.method.options | own
    training = spec.method.training | training
    return replace(spec, method=replace(spec.method, options=options, training=training))
