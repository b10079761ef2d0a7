"""The jobs of tables and figures: the runs that each shows, and the rounds that it reports."""

from collections.abc import Iterator
from itertools import groupby, product

from fedloom.config.protocols import study_of
from fedloom.config.rounds import Reported, reported
from fedloom.config.settings import VALIDATION, Output, Settings
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


def _shown(settings: Settings, output: Output) -> jobs.PlotInputs:
    """Return the runs that a table or figure shows, in the order of the study's methods."""
    crossed = product(output.scenarios, output.backbones)
    return jobs.PlotInputs(
        scenarios=tuple(f"{scenario}/{backbone}" for scenario, backbone in crossed),
        methods=tuple(_plotted_methods(settings, output)),
        seeds=output_seeds(settings, output),
        artefact=output.keys.artefact_name,
        reported=_reported(settings, output),
    )


def _reported(settings: Settings, output: Output) -> dict[str, Reported]:
    """Return the reported rounds of an output's runs, see jobs.PlotInputs."""
    result = {}
    for partition in dict.fromkeys(scenario.partition for scenario in output.scenarios):
        result[partition] = reported(study_of(settings, partition))
        for method in output.methods:
            if settings.methods[method].rounds is not None:
                own = reported(study_of(settings, partition, method))
                result[f"{partition}/{method}"] = own
    return result


def _plotted_methods(settings: Settings, output: Output) -> Iterator[jobs.PlottedMethod]:
    """Yield methods as a table or figure shows them, members of a grid together."""
    methods = [settings.methods[m] for m in settings.select.methods if m in output.methods]
    for label, group in groupby(methods, lambda m: m.member.grid if m.member else m.label):
        members = list(group)
        plugin, grid = find(members[0].plugin), settings.grids.get(label)
        parts = {plugin.trained_part(method.options) for method in members}
        yield jobs.PlottedMethod(
            label=label,
            title=(grid or members[0]).title,
            look=members[0].look,
            trains=parts.pop() if len(parts) == 1 else "",
            sees_held_out=plugin.server_sees_held_out,
            grid=grid,
            positions=tuple(each.member.position for each in members if each.member),
        )
