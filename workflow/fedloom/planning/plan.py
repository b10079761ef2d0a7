"""Answer what the Snakefile asks about a study, rule by rule."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fedloom.common.json_types import JsonDict
from fedloom.config.backbones import TOKENIZER_FILES
from fedloom.config.protocols import job_ends
from fedloom.config.reading import Change
from fedloom.config.settings import OutputEntry, Settings, local_weights
from fedloom.config.study import Study
from fedloom.machine.install import ROOT, resource
from fedloom.planning import (
    choices,
    job_specs,
    output_runs,
    paths,
    settings_of_run,
    staleness,
)
from fedloom.planning.resources.estimates import Resources, request
from fedloom.planning.rules import RULES
from fedloom.planning.rules.output_rules import FigureRule, TableRule
from fedloom.planning.rules.run_rules import ArtefactRule, ChooseRule
from fedloom.planning.run_labels import Run, Wildcards
from fedloom.planning.runs import scenarios, study_runs


@dataclass(frozen=True)
class Plan:
    """The plan of a study, which answers the questions of the Snakefile.

    Its methods take the wildcards of a rule. Where the argument is `labels`, it may be a Run too.
    """

    settings: Settings
    # the merged config from which the settings were made
    config: JsonDict = field(default_factory=dict)
    # the files that the settings were read from, later ones over earlier ones
    files: tuple[Path, ...] = ()
    # changes of single keys, which override the files
    changes: tuple[Change, ...] = ()
    # a cache of the digests of single source files, by name
    _digests_of_files: dict[str, str] = field(default_factory=dict)
    # a cache of the digests of all sources of a job, by its modules and its plugins' folders
    _digests_of_jobs: dict[tuple[tuple[str, ...], tuple[Path, ...]], str] = field(
        default_factory=dict
    )

    @property
    def name(self) -> str:
        """The study's name."""
        return self.settings.study.name

    @property
    def tables(self) -> list[str]:
        """The study's tables, as Markdown files."""
        labels = self.settings.select.tables
        return [str(paths.path_for(paths.TABLE, study=self.name, label=label)) for label in labels]

    @property
    def figures(self) -> list[str]:
        """The study's figures, as PDF files."""
        labels = self.settings.select.figures
        return [str(paths.path_for(paths.FIGURE, study=self.name, label=label)) for label in labels]

    @property
    def partition_charts(self) -> list[str]:
        """A chart of each partition, for the first seed."""
        seed = self.settings.study.seeds[0]
        charts = []
        for scenario in scenarios(self.settings):
            chart = paths.path_for(paths.PARTITION_CHART, **vars(scenario), seed=seed)
            charts.append(str(chart))
        return charts

    @cached_property
    def runs(self) -> list[Run]:
        """The runs that the study's tables and figures show, without the trials before them."""
        return study_runs(self.settings)

    @property
    def run_tables(self) -> list[str]:
        """The names of the tables that a run has (paths.RUN_TABLES)."""
        return paths.table_names(self.settings.study.confusion)

    def job(self, rule: str, wildcards: Wildcards) -> job_specs.Job:
        """Return the job of a rule that the wildcards name."""
        job = RULES[rule].make_job(self.settings, wildcards)
        if isinstance(job, job_specs.TrainJob):
            return replace(job, sources=self.sources(rule, job))
        return job

    def table_job(self, label: str) -> job_specs.TableJob:
        """Return the job that writes a table."""
        return TableRule().make_job(self.settings, Wildcards(label=label))

    def figure_job(self, label: str) -> job_specs.FigureJob:
        """Return the job that draws a figure."""
        return FigureRule().make_job(self.settings, Wildcards(label=label))

    def run_spec(self, run: Run) -> job_specs.RunSpec:
        """Return everything that a run's numbers depend on, except the options of `choose`."""
        return settings_of_run.run_spec(self.settings, run)

    def study(self, labels: Run | Wildcards) -> Study:
        """Return the study with the values that a run has (see fedloom.config.protocols)."""
        return settings_of_run.study_of_run(self.settings, labels)

    def sources(self, rule: str, job: job_specs.Job) -> str:
        """Return a digest of the source files that a job depends on: a parameter of its rule."""
        modules, plugins = RULES[rule].code(job)
        key = (modules, tuple(plugin.folder for plugin in plugins))
        known = self._digests_of_jobs
        if key not in known:
            known[key] = staleness.sources_digest(modules, plugins, self._digests_of_files)
        return known[key]

    def resources(
        self, rule: str, wildcards: Wildcards, attempt: int = 1, on_gpu: bool = False
    ) -> Resources:
        """Return the memory and time that a job of this rule asks a cluster for."""
        return request(self.settings, rule, wildcards, attempt, on_gpu)

    def run_inputs(self, labels: Run | Wildcards) -> dict[str, Path]:
        """Return the data files that a run reads (see paths.run_inputs)."""
        return paths.run_inputs(Run.from_labels(labels), self.settings.methods[labels.method].needs)

    def other_inputs(self, wildcards: Wildcards) -> list[Path]:
        """Return the data files of the other datasets on which an artefact tests the clients."""
        needs = self.settings.methods[wildcards.method].needs
        run = Run.from_labels(wildcards)
        files = list[Path]()
        for name in ArtefactRule().make_job(self.settings, wildcards).transfer_to:
            files += paths.other_inputs(name, run, needs).values()
        return files

    def job_files(
        self, labels: Run | Wildcards, pattern: str, ends: Sequence[int] | None = None
    ) -> list[str]:
        """Return the file of a pattern for every job of a run, or for those that end at `ends`."""
        run = Run.from_labels(labels)
        if ends is None:
            ends = job_ends(self.study(labels))
        return [str(paths.path_for(pattern, run, end=paths.four_digits(end))) for end in ends]

    def previous_job_file(self, wildcards: Wildcards, pattern: str) -> list[str]:
        """Return the file of a pattern for the job before; none for the first job of a run."""
        first = settings_of_run.rounds_of_job(self.settings, wildcards).start
        if first == 0:
            return []
        return self.job_files(wildcards, pattern, [first])

    def last_job_file(self, wildcards: Wildcards, pattern: str) -> str:
        """Return the file of a pattern for the last job of a run."""
        return self.job_files(wildcards, pattern)[-1]

    def trial_files(self, wildcards: Wildcards) -> list[str]:
        """Return the evaluation.parquet of each of a method's trials."""
        job = ChooseRule().make_job(self.settings, wildcards)
        return [str(path) for _, path in choices.trial_evaluations(job)]

    def choice_file(self, labels: Run | Wildcards) -> list[str]:
        """Return the file with the chosen options of a run; none if its options are not tuned."""
        if not settings_of_run.trials_of_run(self.settings, labels):
            return []
        return [str(paths.path_for(paths.CHOICE, Run.from_labels(labels)))]

    def weights_file(self, wildcards: Wildcards) -> list[str]:
        """Return a backbone's local files: its weights, and those of its tokenizer.

        Files that a hub has, or that FedLoom ships, are left out.
        """
        backbone = self.settings.backbones[wildcards.backbone]
        files = list[Path]()
        path = local_weights(backbone)
        if path is not None and not path.is_relative_to(ROOT / "workflow"):
            files.append(path)
        if "tokenizer" in backbone.settings:
            folder = resource(backbone.settings["tokenizer"])
            files += [folder / name for name in TOKENIZER_FILES]
        return [os.path.relpath(file) for file in files]

    def shown_files(self, rule: str, wildcards: Wildcards) -> list[str]:
        """Return the files that a table or figure reads (see output_runs.output_files)."""
        make = self.table_job if rule == "table" else self.figure_job
        spec = self._output(rule, wildcards).entry.spec
        files = output_runs.output_files(make(wildcards.label), spec)
        return list(map(str, files))

    def caption(self, rule: str, wildcards: Wildcards) -> str:
        """Return the sentence that says what a table or figure shows, as its kind has it.

        For a figure, it follows `study.remark`, and is followed by what the study was narrowed to.
        A table has both in a caption of its own.
        """
        output = self._output(rule, wildcards)
        caption = output.entry.caption
        if rule != "figure":
            return caption
        sentences = [self.settings.study.remark, caption, output.narrowed]
        return " ".join(sentence for sentence in sentences if sentence)

    def details(self, rule: str, wildcards: Wildcards) -> list[str]:
        """Return what else the kind of a table or figure says of it, by paragraph."""
        return self._output(rule, wildcards).entry.details

    def _output(self, rule: str, wildcards: Wildcards) -> OutputEntry:
        """Return the table or figure that the wildcards name."""
        outputs = self.settings.figures
        if rule == "table":
            outputs = self.settings.tables
        return outputs[wildcards.label]
