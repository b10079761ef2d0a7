"""Find the trials of a method, and the options that rule `choose` wrote for it."""

import json
from dataclasses import replace
from pathlib import Path

from fedloom.common.files import read_table
from fedloom.common.json_types import JsonDict
from fedloom.common.schema import is_number
from fedloom.config import grids
from fedloom.config.settings import VALIDATION, Trial
from fedloom.planning import paths
from fedloom.planning.job_specs import ChooseJob, RunSpec
from fedloom.planning.run_labels import Run


def trial_evaluations(job: ChooseJob) -> list[tuple[Trial, Path]]:
    """Return every trial with the path of its evaluation.parquet."""
    labels = job.dataset, job.partition + VALIDATION, job.backbone
    runs = [(trial, Run(*labels, trial.label, job.seed)) for trial in job.trials]
    return [(trial, paths.path_for(paths.EVALUATION, run)) for trial, run in runs]


def chosen_options(file: Path) -> JsonDict:
    """Read the options of the chosen trial; a training option begins with `training.`.

    Raises:
        FedLoomError: the file is missing or damaged.
    """
    # imports pyarrow, which plans do not need
    from fedloom.common.run_tables import CHOICE_SCHEMA

    return json.loads(read_table(file, CHOICE_SCHEMA)["options"][0].as_py())


def read_trials(file: Path) -> tuple[JsonDict, list[JsonDict]]:
    """Read the options of the chosen trial and of all trials from trials.parquet."""
    # imports pyarrow, which plans do not need
    from fedloom.common.run_tables import TRIALS_SCHEMA

    rows = read_table(file, TRIALS_SCHEMA).to_pylist()
    (best,) = (row["options"] for row in rows if row["chosen"])
    return json.loads(best), [json.loads(row["options"]) for row in rows]


def at_edge(chosen: JsonDict, trials: list[JsonDict]) -> dict[str, str]:
    """Return the options whose chosen number is the "lowest" or the "highest" that was tried."""
    edges = {}
    for name, value in chosen.items():
        # an option has an edge only if several numbers were tried
        numbers = {each[name] for each in trials if is_number(each[name])}
        if not is_number(value) or len(numbers) < 2:
            continue

        if value == min(numbers):
            edges[name] = "lowest"
        elif value == max(numbers):
            edges[name] = "highest"
    return edges


def with_choice(spec: RunSpec) -> RunSpec:
    """Return the spec of a run; if its options are tuned, with the chosen options.

    Raises:
        FedLoomError: the file of the chosen options is missing or damaged.
    """
    if not spec.tuned:
        return spec

    # split the chosen options into the method's own and those of training
    chosen = chosen_options(paths.path_for(paths.CHOICE, spec.run))
    own, training = grids.split_training_options(chosen)

    # the chosen options override those of the config
    method = replace(
        spec.method,
        options=spec.method.options | own,
        training=spec.method.training | training,
    )
    return replace(spec, method=method)
