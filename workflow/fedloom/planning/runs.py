"""Find the runs that a study has, and the run that a folder is of."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

from fedloom.common.errors import FedLoomError, shorten, suggestion
from fedloom.config.settings import VALIDATION, OutputEntry, Scenario, Settings
from fedloom.planning.paths import EVALUATION, path_for
from fedloom.planning.run_labels import RUN_NAME, Run


def find_finished_run(name: str) -> Run:
    """Return the run that a folder below results/runs is of.

    Raises:
        FedLoomError: the name is not that of a run's folder, or the run has not finished.
    """
    # the labels are the folder's last parts
    found = re.search(r"([^/]+)/([^/]+)/([^/]+)/([^/]+)/seed(\d+)/?$", name)
    if found is None:
        form = RUN_NAME.replace("{", "<").replace("}", ">")
        raise FedLoomError(f"{name}: must be the folder of a run, {form}")
    dataset, partition, backbone, method, seed = found.groups()
    run = Run(dataset, partition, backbone, method, int(seed))

    # an error names the run that comes nearest among those that have finished
    if not path_for(EVALUATION, run).is_file():
        folders = Path().glob(re.sub(r"{\w+}", "*", EVALUATION))
        near = suggestion(run.path, [str(Path(*file.parts[2:-1])) for file in folders])
        raise FedLoomError(f"{run.path}: no run that has finished; {shorten(near)}")
    return run


def output_seeds(settings: Settings, output: OutputEntry) -> tuple[int, ...]:
    """Return the seeds of the runs that a table or figure shows."""
    seeds = tuple(settings.study.seeds)
    if output.entry.needs().first_seed:
        return seeds[:1]
    return seeds


def study_runs(settings: Settings, artefact: str | None = None) -> list[Run]:
    """List every run that a table or figure shows, in the config's order.

    If an artefact is given, only tables and figures that read this artefact count.
    """
    select = settings.select
    outputs = [settings.tables[label] for label in select.tables]
    outputs += [settings.figures[label] for label in select.figures]

    # combinations of scenario, backbone, method and seed that are shown
    shown = set()
    for output in outputs:
        if artefact in (None, output.entry.needs().artefact):
            seeds = output_seeds(settings, output)
            shown |= set(product(output.scenarios, output.backbones, output.methods, seeds))

    # go through all combinations in the config's order, so that the runs have this order
    found = []
    every = product(select.scenarios, select.backbones, select.methods, settings.study.seeds)
    for each in every:
        if each in shown:
            scenario, backbone, method, seed = each
            found.append(Run(scenario.dataset, scenario.partition, backbone, method, seed))
    return found


def trial_runs(settings: Settings) -> list[Run]:
    """List the trials by which the options of a study's runs are chosen (study.tune)."""
    # runs that differ by their seeds alone share their trials
    found = dict[Run, None]()
    for run in study_runs(settings):
        found |= dict.fromkeys(trials_of_one_run(settings, run))
    return list(found)


def trials_of_one_run(settings: Settings, run: Run) -> list[Run]:
    """List the trials by which the options of a run are chosen; none if the config sets them."""
    tune = settings.study.tune
    if tune is None:
        return []
    partition = run.partition + VALIDATION
    return [
        replace(run, partition=partition, method=trial.label, seed=tune.seed)
        for trial in settings.trials.get(run.method, ())
    ]


def scenarios(settings: Settings) -> list[Scenario]:
    """List the scenarios of a study's runs; without tables and figures, all that it selects."""
    select = settings.select
    if not select.tables and not select.figures:
        return list(select.scenarios)
    return list(dict.fromkeys(Scenario(run.dataset, run.partition) for run in study_runs(settings)))
