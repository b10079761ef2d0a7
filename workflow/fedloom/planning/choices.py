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
    # imports pyarrow, which plans do not need
    from fedloom.common.run_tables import CHOICE_SCHEMA

    return json.loads(read_table(file, CHOICE_SCHEMA)["options"][0].as_py())


def read_trials(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read the options of the chosen trial and of all trials from trials.parquet."""
    # imports pyarrow, which plans do not need
    from fedloom.common.run_tables import TRIALS_SCHEMA

    rows = read_table(file, TRIALS_SCHEMA).to_pylist()
    (best,) = (row["options"] for row in rows if row["chosen"])
    return json.loads(best), [json.loads(row["options"]) for row in rows]


def at_edge(chosen: dict[str, Any], trials: list[dict[str, Any]]) -> dict[str, str]:
    """Return the options whose chosen number is the lowest or highest tried, and which it is."""
    edges = {}
    for name, value in chosen.items():
        # an option without two numbers to choose from has no edge
        numbers = {each[name] for each in trials if is_number(each[name])}
        if not is_number(value) or len(numbers) < 2:
            continue

        if value == min(numbers):
            edges[name] = "lowest"
        elif value == max(numbers):
            edges[name] = "highest"
    return edges


def with_choice(spec: RunSpec) -> RunSpec:
    """Return the spec with the chosen options, if it is tuned (errors: see chosen_options)."""
    if not spec.tuned:
        return spec

    # what was chosen: options of the method, and options of its training
    chosen = chosen_options(paths.path_for(paths.CHOICE, spec.run))
    own, training = grids.split_training_options(chosen)

    # each overrides what the config gives
    method = replace(
        spec.method,
        options=spec.method.options | own,
        training=spec.method.training | training,
    )
    return replace(spec, method=method)
