"""Runs: their names, and which of them a study has."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

from fedloom.common.errors import FedLoomError, shortened, suggestion
from fedloom.config.settings import VALIDATION, Output, Scenario, Settings
from fedloom.planning.paths import EVALUATION, path_for
from fedloom.planning.run_labels import NAME, Run


def finished(name: str) -> Run:
    """Return the run that a folder below results/runs is of; it must have finished."""
    found = re.search(r"([^/]+)/([^/]+)/([^/]+)/([^/]+)/seed(\d+)/?$", name)
    if found is None:
        form = NAME.replace("{", "<").replace("}", ">")
        raise FedLoomError(f"{name}: must be the folder of a run, {form}")
    dataset, partition, backbone, method, seed = found.groups()
    run = Run(dataset, partition, backbone, method, int(seed))
    if not path_for(EVALUATION, run).is_file():
        folders = Path().glob(re.sub(r"{\w+}", "*", EVALUATION))
        near = suggestion(run.path, [str(Path(*file.parts[2:-1])) for file in folders])
        raise FedLoomError(f"{run.path}: no run that has finished; {shortened(near)}")
    return run


def output_seeds(settings: Settings, output: Output) -> tuple[int, ...]:
    """Return the seeds of the runs that a table or figure shows."""
    seeds = tuple(settings.study.seeds)
    if output.keys.needs().first_seed:
        return seeds[:1]
    return seeds


def runs(settings: Settings, artefact: str | None = None) -> list[Run]:
    """List every run that a table or figure shows, or one of an artefact, in the config's order."""
    select = settings.select
    shown = set()
    outputs = [settings.tables[label] for label in select.tables]
    for output in outputs + [settings.figures[label] for label in select.figures]:
        labels = (output.scenarios, output.backbones, output.methods)
        if artefact in (None, output.keys.needs().artefact):
            shown |= set(product(*labels, output_seeds(settings, output)))
    every = product(select.scenarios, select.backbones, select.methods, settings.study.seeds)
    return [Run(each[0].dataset, each[0].partition, *each[1:]) for each in every if each in shown]


def trial_runs(settings: Settings) -> list[Run]:
    """List the trials by which the options of a study's runs are chosen (study.tune)."""
    tune = settings.study.tune
    found = dict[Run, None]()
    if tune is None:
        return []
    for run in runs(settings):
        for trial in settings.trials.get(run.method, ()):
            changes = {"partition": run.partition + VALIDATION, "method": trial.label}
            found[replace(run, **changes, seed=tune.seed)] = None
    return list(found)


def scenarios(settings: Settings) -> list[Scenario]:
    """List the scenarios that a study's runs have; of a study without outputs, all it selects."""
    select = settings.select
    of_runs = dict.fromkeys(Scenario(run.dataset, run.partition) for run in runs(settings))
    return list(of_runs if select.tables or select.figures else select.scenarios)
