"""Define the rules of tables and figures, whose jobs read many runs."""

from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path
from typing import Any

from fedloom.config import settings as config
from fedloom.config.kinds import KINDS
from fedloom.config.protocols import reported_rounds, study_for
from fedloom.config.settings import VALIDATION, OutputEntry, Settings
from fedloom.hooks.manifest import find_method
from fedloom.planning import paths
from fedloom.planning.job_specs import FigureJob, PlotInputs, PlottedMethod, TableJob, Tuned
from fedloom.planning.output_runs import output_files
from fedloom.planning.rules.rule import Code, Rule, code_of_kind
from fedloom.planning.run_labels import Wildcards
from fedloom.planning.runs import output_seeds


class TableRule(Rule[TableJob]):
    """Writes a table."""

    name = "table"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> TableJob:
        """Return the job of the table that the wildcard `label` names."""
        output = settings.tables[wildcards.label]
        return TableJob(
            study=settings.study.name,
            label=wildcards.label,
            kind=output.kind,
            module=type(output.entry).__module__,
            title=getattr(output.entry, "title", None),
            settings=output.settings,
            published=output.published,
            shown=_plot_inputs(settings, output),
            tuned=_tuned(settings, output),
            remark=settings.study.remark,
            narrowed=output.narrowed,
        )

    def inputs(self, job: TableJob) -> list[Path]:
        """Return the files that a table of this kind reads."""
        kind: Any = KINDS["tables"][job.kind]
        return output_files(job, kind.spec)

    def outputs(self, job: TableJob) -> list[Path]:
        """Return the table in every format."""
        first = paths.path_for(paths.TABLE, study=job.study, label=job.label)
        return [first.with_suffix(f".{name}") for name in paths.TABLE_FORMATS]

    def named_code(self, job: TableJob) -> Code:
        """Return the code of the table's kind."""
        return code_of_kind("table", job.kind, job.module)


class FigureRule(Rule[FigureJob]):
    """Draws a figure."""

    name = "figure"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> FigureJob:
        """Return the job of the figure that the wildcard `label` names."""
        output = settings.figures[wildcards.label]
        if output.entry.needs().shows == "backbones":
            # a figure of frozen backbones has no runs
            shown = None
            datasets = dict.fromkeys(scenario.dataset for scenario in output.scenarios)
            backbones = tuple(map("/".join, product(datasets, output.backbones)))
        else:
            shown = _plot_inputs(settings, output)
            backbones = ()

        return FigureJob(
            study=settings.study.name,
            label=wildcards.label,
            kind=output.kind,
            module=type(output.entry).__module__,
            settings=output.settings,
            shown=shown,
            backbones=backbones,
            remark=settings.study.remark,
        )

    def inputs(self, job: FigureJob) -> list[Path]:
        """Return the files that a figure of this kind reads."""
        kind: Any = KINDS["figures"][job.kind]
        return output_files(job, kind.spec)

    def outputs(self, job: FigureJob) -> list[Path]:
        """Return the figure as PDF and PNG."""
        first = paths.path_for(paths.FIGURE, study=job.study, label=job.label)
        return [first, first.with_suffix(".png")]

    def named_code(self, job: FigureJob) -> Code:
        """Return the code of the figure's kind."""
        return code_of_kind("figure", job.kind, job.module)


def _tuned(settings: Settings, output: OutputEntry) -> Tuned | None:
    """Return how the options of a table's methods were chosen; None if the config sets them."""
    tune = settings.study.tune
    labels = [method for method in output.methods if method in settings.trials]
    if tune is None or not labels:
        return None

    # the numbers of rounds of the trials, which partitions and methods may set
    partitions = [scenario.partition + VALIDATION for scenario in output.scenarios]
    pairs = product(partitions, labels)
    rounds = {study_for(settings, *pair).rounds for pair in pairs}

    return Tuned(
        methods=tuple(labels),
        trials=tune.trials,
        rounds=tuple(sorted(rounds)),
        seed=tune.seed,
        share=tune.validation,
    )


def _plot_inputs(settings: Settings, output: OutputEntry) -> PlotInputs:
    """Return the runs that a table or figure shows, in the order of the study's methods."""
    crossed = product(output.scenarios, output.backbones)
    return PlotInputs(
        scenarios=tuple(f"{scenario}/{backbone}" for scenario, backbone in crossed),
        methods=tuple(_plotted_methods(settings, output)),
        seeds=output_seeds(settings, output),
        artefact=output.entry.needs().artefact,
        reported=_reported_rounds(settings, output),
    )


def _reported_rounds(settings: Settings, output: OutputEntry) -> dict[str, config.ReportedRounds]:
    """Return the rounds of an output's runs that tables report, by the keys of PlotInputs."""
    result = dict[str, config.ReportedRounds]()
    partitions = {scenario.partition for scenario in output.scenarios}
    for partition in partitions:
        result[partition] = reported_rounds(study_for(settings, partition))

    # methods with rounds of their own
    own = [method for method in output.methods if settings.methods[method].rounds is not None]
    for partition, method in product(partitions, own):
        result[f"{partition}/{method}"] = reported_rounds(study_for(settings, partition, method))
    return result


def _plotted_methods(settings: Settings, output: OutputEntry) -> Iterator[PlottedMethod]:
    """Yield the methods of a table or figure; the members of a grid together are one of them."""
    methods = [settings.methods[m] for m in settings.select.methods if m in output.methods]
    for label, group in groupby(methods, _label_of_group):
        members = list(group)
        plugin = find_method(members[0].plugin)
        grid = settings.grids.get(label)

        # if the members of a grid train different parts, no part is stated
        parts = {plugin.trained_part(method.options) for method in members}
        trains = ""
        if len(parts) == 1:
            trains = parts.pop()

        yield PlottedMethod(
            label=label,
            title=(grid or members[0]).title,
            look=members[0].look,
            trains=trains,
            sees_held_out=plugin.server_sees_held_out,
            other_loss=plugin.other_loss,
            grid=grid,
            positions=tuple(each.member.position for each in members if each.member),
        )


def _label_of_group(method: config.Method) -> str:
    """Return the label under which a method is shown: its grid's label, or its own."""
    if method.member is not None:
        return method.member.grid
    return method.label
