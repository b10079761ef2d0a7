"""Which runs a study has: those that its tables and figures show."""

from itertools import product

from fedloom.config.settings import Output, Scenario, Settings
from fedloom.study.runs import Run


def outputs(settings: Settings) -> list[Output]:
    """List the study's tables and figures."""
    select = settings.select
    tables = [settings.tables[label] for label in select.tables]
    return tables + [settings.figures[label] for label in select.figures]


def output_seeds(settings: Settings, output: Output) -> tuple[int, ...]:
    """Return the seeds of the runs that a table or figure shows."""
    seeds = tuple(settings.study.seeds)
    return seeds[:1] if output.keys.first_seed else seeds


def runs(settings: Settings) -> list[Run]:
    """List every run that a table or figure of the study shows, in the config's order."""
    shown = set()
    for output in outputs(settings):
        labels = (output.scenarios, output.backbones, output.methods)
        shown |= set(product(*labels, output_seeds(settings, output)))
    select = settings.select
    every = product(select.scenarios, select.backbones, select.methods, settings.study.seeds)
    return [Run(each[0].dataset, each[0].partition, *each[1:]) for each in every if each in shown]


def scenarios(settings: Settings) -> list[Scenario]:
    """List the scenarios that a study's runs have; of a study without outputs, all it selects."""
    if not outputs(settings):
        return list(settings.select.scenarios)
    return list(dict.fromkeys(Scenario(run.dataset, run.partition) for run in runs(settings)))
