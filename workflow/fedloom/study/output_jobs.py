"""The jobs of tables and figures: the runs that each shows, and the rounds that it reports."""

from collections.abc import Iterator
from itertools import groupby, product

from fedloom.config.protocols import study_of
from fedloom.config.rounds import Reported, reported
from fedloom.config.settings import VALIDATION, Method, Output, Settings
from fedloom.hooks.manifest import find
from fedloom.study import jobs
from fedloom.study.runs import output_seeds


def table_job(settings: Settings, table: Output) -> jobs.TableJob:
    """Return the job that writes a table."""
    return jobs.TableJob(
        study=settings.study.name,
        label=table.label,
        kind=table.kind,
        module=type(table.keys).__module__,
        title=getattr(table.keys, "title", None),
        settings=table.settings,
        published=table.published,
        shown=_shown(settings, table),
        tuned=_tuned(settings, table),
    )


def figure_job(settings: Settings, figure: Output) -> jobs.FigureJob:
    """Return the job that draws a figure."""
    of_backbones = figure.keys.shows == "backbones"
    datasets = dict.fromkeys(scenario.dataset for scenario in figure.scenarios)
    pairs = product(datasets, figure.backbones) if of_backbones else ()
    return jobs.FigureJob(
        study=settings.study.name,
        label=figure.label,
        kind=figure.kind,
        module=type(figure.keys).__module__,
        settings=figure.settings,
        shown=None if of_backbones else _shown(settings, figure),
        backbones=tuple(f"{dataset}/{backbone}" for dataset, backbone in pairs),
    )


def _tuned(settings: Settings, output: Output) -> jobs.Tuned | None:
    """Return how the options of a table's methods were chosen, if they were."""
    tune = settings.study.tune
    labels = [method for method in output.methods if method in settings.trials]
    if tune is None or not labels:
        return None
    rounds = {
        study_of(settings, scenario.partition + VALIDATION, label).rounds
        for scenario, label in product(output.scenarios, labels)
    }
    return jobs.Tuned(tuple(labels), tune.trials, tuple(sorted(rounds)), tune.seed, tune.validation)


def _shown(settings: Settings, output: Output) -> jobs.Shown:
    """Return the runs that a table or figure shows, in the order of the study's methods."""
    crossed = product(output.scenarios, output.backbones)
    return jobs.Shown(
        scenarios=tuple(f"{scenario}/{backbone}" for scenario, backbone in crossed),
        methods=tuple(_shown_methods(settings, output)),
        seeds=output_seeds(settings, output),
        artefact=output.keys.artefact_name,
        reported=_reported(settings, output),
    )


def _reported(settings: Settings, output: Output) -> dict[str, Reported]:
    """Return the reported rounds of an output's runs, see jobs.Shown."""
    result = {}
    for partition in dict.fromkeys(scenario.partition for scenario in output.scenarios):
        result[partition] = reported(study_of(settings, partition))
        for method in output.methods:
            if settings.methods[method].rounds is not None:
                own = reported(study_of(settings, partition, method))
                result[f"{partition}/{method}"] = own
    return result


def _shown_methods(
    settings: Settings, output: Output
) -> Iterator[jobs.ShownMethod | jobs.ShownGrid]:
    """Yield methods as a table or figure shows them, members of a grid together."""
    methods = [settings.methods[m] for m in settings.select.methods if m in output.methods]
    for grid, group in groupby(methods, lambda method: method.member and method.member.grid):
        members = list(group)
        if grid is None:
            for method in members:
                about = _shown_plugin([method])
                yield jobs.ShownMethod(method.label, method.title, method.look, about)
        else:
            positions = tuple(each.member.position for each in members if each.member)
            about = _shown_plugin(members)
            yield jobs.ShownGrid(settings.grids[grid], positions, members[0].look, about)


def _shown_plugin(methods: list[Method]) -> jobs.ShownPlugin:
    """Return the facts that a table states of a method, or of the members of a grid."""
    plugin = find(methods[0].plugin)
    parts = {plugin.trained_part(method.options) for method in methods}
    trains = parts.pop() if len(parts) == 1 else ""
    return jobs.ShownPlugin(trains, plugin.server_sees_held_out)
