"""The plan of a study: what the Snakefile asks, rule by rule."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_usable
from fedloom.common.receipts import digest, sha256
from fedloom.config import data_plugins
from fedloom.config.datasets import NOTHING_EXPECTED
from fedloom.config.kinds import Catalogue
from fedloom.config.protocols import is_trial, method_of, study_of
from fedloom.config.reading import merge, read_all
from fedloom.config.resolve import resolve
from fedloom.config.rounds import evaluated_rounds, job_ends, sampled_rounds
from fedloom.config.settings import (
    VALIDATION,
    Backbone,
    FixedSeeds,
    Output,
    Settings,
    Trial,
    local_weights,
)
from fedloom.config.study import Study
from fedloom.hooks.manifest import find
from fedloom.study import (
    jobs,
    output_jobs,
    paths,
    plot_inputs,
    selected,
    staleness,
    study_runs,
    work,
)
from fedloom.study.overview import overview
from fedloom.study.resources import Resources, request
from fedloom.study.runs import Run
from fedloom.study.work import Work, Workload

CONFIG = ROOT / "config.yaml"
LAUNCHER = "FEDLOOM_LAUNCHER"  # set where `make run`, not Snakemake, prints the table at the end


@dataclass(frozen=True)
class Plan:
    """Answers what Snakemake needs to know: jobs, inputs, sources and labels.

    Methods take a rule's wildcards, which have their names of fedloom.study.paths.
    """

    settings: Settings

    @classmethod
    def load(
        cls,
        kinds: Catalogue,
        files: Sequence[Path] = (),
        overrides: Mapping[str, Any] | None = None,
    ) -> "Plan":
        """Read config.yaml and the study's files over it, then `overrides` (--config).

        Files that a file includes are read before it.

        Args:
            kinds: of data sets, partitions, tables and figures.

        An error that a person can mend ends the process with one line.
        """
        try:
            check_usable(Path(paths.RESULTS))
            _warn_of_broken_plugins()
            contents = read_all([CONFIG, *map(Path, files)])
            config = merge(contents, dict(overrides or {}))
            plan = cls(resolve(config, kinds, [path for path, _ in contents]))
            for label in plan.settings.select.methods:  # what is no Python is said here, in a line
                plugin = find(plan.settings.methods[label].plugin)
                staleness.files_of(staleness.Code((), (plugin,)))
            return plan
        except FedLoomError as error:
            sys.exit(f"error: {error}")

    # ---- what the study makes --------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The study's name."""
        return self.settings.study.name

    @property
    def tables(self) -> list[str]:
        """The study's tables, as Markdown files."""
        return [str(self._table(label)) for label in self.settings.select.tables]

    @property
    def figures(self) -> list[str]:
        """The study's figures, as PDF files."""
        at, labels = paths.at, self.settings.select.figures
        return [str(at(paths.FIGURE, study=self.name, label=label)) for label in labels]

    @property
    def partition_charts(self) -> list[str]:
        """A chart of each partition, for the first seed."""
        seed = self.settings.study.seeds[0]
        return [
            str(paths.at(paths.PARTITION_CHART, **vars(scenario), seed=seed))
            for scenario in study_runs.scenarios(self.settings)
        ]

    @cached_property
    def runs(self) -> list[Run]:
        """The runs that the study's tables and figures show, without the trials before them."""
        return study_runs.runs(self.settings)

    @property
    def run_tables(self) -> list[str]:
        """The names of the tables that a run has (paths.RUN_TABLES)."""
        confusion = self.settings.study.confusion
        return [name for name in paths.RUN_TABLES if confusion or name != "confusion"]

    def _table(self, label: str) -> Path:
        return paths.at(paths.TABLE, study=self.name, label=label)

    def summary(self) -> str:
        """Return the first table and where everything lies, for the end of a run."""
        select = self.settings.select
        if not select.tables or not self._table(select.tables[0]).is_file():
            return f"logs    {paths.LOGS}"  # other targets than the study's tables
        folder = self._table("x").parent
        figures = paths.at(paths.FIGURE, study=self.name, label="<label>").with_suffix("")
        return "\n".join(
            [
                self._table(select.tables[0]).read_text(),
                f"tables  {folder}/{{{','.join(select.tables)}}}.{{md,csv,tex,html,parquet}}",
                f"figures {figures}.{{pdf,png}}",
                f"runs    {paths.RUN.replace('{', '<').replace('}', '>')}/",
                "        evaluation.parquet: per client; rounds, clients.parquet: per round",
                f"logs    {paths.LOGS}",
            ]
        )

    @staticmethod
    def failures(since: float) -> str:
        """Return the error lines of the jobs that failed since then, with their logs."""
        lines = []
        for log in sorted(Path(paths.LOGS).rglob("*.log")):
            if log.stat().st_mtime >= since:
                text = log.read_text(errors="replace")
                errors = [line for line in text.splitlines() if line.startswith("error: ")]
                lines += [f"\n{line}\n  in {log}" for line in errors]
        return "\n".join(lines)

    # ---- jobs ------------------------------------------------------------------------------------

    def dataset_job(self, wildcards: Any) -> jobs.DatasetJob:
        # what is expected of it, and what a recipe says of it, does not bear on the store
        dataset = self.settings.datasets[wildcards.dataset]
        return jobs.DatasetJob(replace(dataset, expected=NOTHING_EXPECTED, domains=None, notes=()))

    def partition_job(self, wildcards: Any) -> jobs.PartitionJob:
        partition = self.settings.partitions[wildcards.partition]
        return jobs.PartitionJob(wildcards.dataset, partition, int(wildcards.seed))

    def cache_job(self, wildcards: Any) -> jobs.CacheJob:
        backbone = self.settings.backbones[wildcards.backbone]
        return jobs.CacheJob(wildcards.cache, wildcards.dataset, backbone)

    def prototypes_job(self, wildcards: Any) -> jobs.PrototypesJob:
        w, study = wildcards, study_of(self.settings, wildcards.partition)
        return jobs.PrototypesJob(
            dataset=w.dataset,
            partition=w.partition,
            backbone=w.backbone,
            seed=int(w.seed),
            clients_per_round=study.clients_per_round,
            sampling=study.fixed_seeds.sampling,
        )

    def _backbone(self, labels: Any) -> Backbone:
        """Return a run's backbone, with the settings that its study adds."""
        study, backbone = self.study(labels), self.settings.backbones[labels.backbone]
        added: dict[str, Any] = {}
        if study.precision != "float32":  # so that float32 results keep their jobs
            added["precision"] = study.precision
        if study.gradient_checkpointing:
            added["gradient_checkpointing"] = True
        return replace(backbone, settings=backbone.settings | added)

    def run_spec(self, run: Run) -> jobs.RunSpec:
        """Return all that bears on a run's numbers, but for what `choose` adds if it is tuned."""
        study, method = self.study(run), method_of(self.settings, run.partition, run.method)
        tried = [trial.options.get("training.schedule") for trial in self.trials_of(run)]
        # what is not trained has no schedule
        cosine = "cosine" in (method.training.get("schedule"), *tried)
        return jobs.RunSpec(
            run=run,
            backbone=self._backbone(run),
            method=jobs.MethodSpec.of(method),
            clients_per_round=study.clients_per_round,
            rounds_per_job=study.rounds_per_job,
            schedule_rounds=study.rounds if cosine else None,
            stacked=study.stacked,
            tuned=bool(self.trials_of(run)),
            fixed=FixedSeeds(study.fixed_seeds.sampling, study.fixed_seeds.initialisation),
        )

    def train_job(self, wildcards: Any) -> jobs.TrainJob:
        study, rounds = self.study(wildcards), self._rounds(wildcards)
        sampled = _within(rounds, sampled_rounds(study))
        spec = self.run_spec(_run(wildcards))
        return jobs.TrainJob(
            spec=spec,
            first=rounds.start,
            last=rounds.stop,
            evaluate=_within(rounds, evaluated_rounds(study)),
            global_test=study.global_test,
            sources=self.sources("train", spec),
            confusion=study.confusion,
            trial=is_trial(self.settings, wildcards.partition),
            sampled=sampled,
            evaluate_clients=study.evaluate_clients if sampled else None,
        )

    def _rounds(self, wildcards: Any) -> range:
        """Return the rounds of a training job, counted from 0."""
        study, last = self.study(wildcards), int(wildcards.end)
        return range((last - 1) // study.rounds_per_job * study.rounds_per_job, last)

    def choose_job(self, wildcards: Any) -> jobs.ChooseJob:
        w, tune = wildcards, self.settings.study.tune
        assert tune is not None
        return jobs.ChooseJob(
            dataset=w.dataset,
            partition=w.partition,
            backbone=w.backbone,
            method=w.method,
            trials=self.settings.trials[w.method],
            seed=tune.seed,
            last=study_of(self.settings, w.partition + VALIDATION, w.method).rounds,
        )

    def evaluate_job(self, wildcards: Any) -> jobs.EvaluateJob:
        study = self.study(wildcards)
        return jobs.EvaluateJob(_run(wildcards), tuple(job_ends(study)), study.confusion)

    def artefact_job(self, wildcards: Any) -> jobs.ArtefactJob:
        spec, last = self.run_spec(_run(wildcards)), self.study(wildcards).rounds
        return jobs.ArtefactJob(spec, last, wildcards.artefact)

    def block_accuracy_job(self, wildcards: Any) -> jobs.BlockAccuracyJob:
        return jobs.BlockAccuracyJob(wildcards.dataset, wildcards.backbone)

    def partition_chart_job(self, wildcards: Any) -> jobs.PartitionChartJob:
        return jobs.PartitionChartJob(wildcards.dataset, wildcards.partition, int(wildcards.seed))

    def table_job(self, wildcards: Any) -> jobs.TableJob:
        return output_jobs.table_job(self.settings, self.settings.tables[wildcards.label])

    def figure_job(self, wildcards: Any) -> jobs.FigureJob:
        return output_jobs.figure_job(self.settings, self.settings.figures[wildcards.label])

    def study(self, labels: Any) -> Study:
        """Return the study as a run has it, see fedloom.config.protocols.

        Args:
            labels: a run, or wildcards.
        """
        return study_of(self.settings, labels.partition, labels.method)

    def trials_of(self, labels: Any) -> tuple[Trial, ...]:
        """Return the trials that a run's options are chosen from; none if they are the config's."""
        if is_trial(self.settings, labels.partition):
            return ()
        return self.settings.trials.get(labels.method, ())

    # ---- memory and time -------------------------------------------------------------------------

    def resources(self, rule: str, wildcards: Any, on_gpu: bool = False) -> Resources:
        """Return the request of a job of this rule to a cluster."""
        return request(self.work(rule, wildcards), resumes=rule == "train", on_gpu=on_gpu)

    def work(self, rule: str, wildcards: Any) -> Work:
        """Return what a job of this rule takes."""
        w, settings = wildcards, self.settings
        dataset = settings.datasets[w.dataset]
        if rule == "dataset":
            return work.of_dataset(dataset)
        backbone = settings.backbones[w.backbone]
        if rule == "cache":
            return work.of_cache(dataset, backbone)
        if rule in ("prototypes", "block_accuracy"):
            return work.of_class_tokens(dataset, backbone)
        if rule == "artefact":
            return work.of_artefact(self.workload(w, w.method))
        study, rounds = self.study(w), self._rounds(w)
        evaluations = (
            len(_within(rounds, evaluated_rounds(study))),
            len(_within(rounds, sampled_rounds(study))),
        )
        # a tuned run may get the options of any of its trials
        labels = (w.method, *(trial.label for trial in self.trials_of(w)))
        most = [work.of_training(self.workload(w, m), len(rounds), *evaluations) for m in labels]
        return work.most(most)

    def workload(self, labels: Any, method: str) -> Workload:
        """Return what the estimate of a run is made of.

        Args:
            labels: a run, or wildcards.
            method: its label, or that of one of its trials.
        """
        settings = self.settings
        found = method_of(settings, labels.partition, method)
        return Workload(
            study=self.study(labels),
            dataset=settings.datasets[labels.dataset],
            partition=settings.partitions[labels.partition],
            backbone=self._backbone(labels),
            method=found,
            plugin=find(found.plugin),
        )

    # ---- inputs ----------------------------------------------------------------------------------

    def run_inputs(self, labels: Any) -> dict[str, Path]:
        """Return the data files that a run reads, see paths.run_inputs.

        Args:
            labels: a run, or wildcards.
        """
        return paths.run_inputs(_run(labels), self.settings.methods[labels.method].needs)

    def job_files(self, wildcards: Any, pattern: str) -> list[str]:
        """Return a file of every job of a run."""
        run = _run(wildcards)
        ends = job_ends(self.study(wildcards))
        return [str(paths.at(pattern, run, end=paths.end(number))) for number in ends]

    def start(self, wildcards: Any, pattern: str) -> list[str]:
        """Return a file of the job before; the first job of a run has none."""
        first, run = self._rounds(wildcards).start, _run(wildcards)
        return [str(paths.at(pattern, run, end=paths.end(first)))] if first else []

    def last(self, wildcards: Any, pattern: str) -> str:
        """Return a file of the last job of a run."""
        end = paths.end(self.study(wildcards).rounds)
        return str(paths.at(pattern, _run(wildcards), end=end))

    def trials(self, wildcards: Any) -> list[str]:
        """Return the evaluations of a method's trials."""
        return [str(path) for _, path in selected.evaluations(self.choose_job(wildcards))]

    def choice(self, wildcards: Any) -> list[str]:
        """Return the file with the options that a run is trained with, if they are tuned."""
        return [str(paths.at(paths.CHOICE, _run(wildcards)))] if self.trials_of(wildcards) else []

    def weights(self, wildcards: Any) -> list[str]:
        """Return the backbone's local weights file, if it has one."""
        path = local_weights(self.settings.backbones[wildcards.backbone])
        return [] if path is None else staleness.relative([path])

    def shown_files(self, section: str, wildcards: Any) -> list[str]:
        """Return the Parquet files that a table or figure is made of."""
        job = self.table_job(wildcards) if section == "tables" else self.figure_job(wildcards)
        return plot_inputs.files(job, self._output(section, wildcards).keys)

    # ---- sources ---------------------------------------------------------------------------------

    def sources(self, rule: str, job: Any) -> str:
        """Return a digest of the source files that a rule's job depends on.

        It is a parameter of every rule, so that an edit makes Snakemake run the job again. Files
        are as they were when the plan first read them.
        """
        code = staleness.code_of(rule, job)
        key = (code.modules, tuple(plugin.folder for plugin in code.plugins))
        if key not in self._digests:
            files = staleness.files_of(code)
            self._digests[key] = digest({file: self._hash(file) for file in files})
        return self._digests[key]

    def _hash(self, file: str) -> str:
        if file not in self._hashes:
            self._hashes[file] = sha256(Path(file))
        return self._hashes[file]

    @cached_property
    def _digests(self) -> dict[tuple, str]:
        return {}

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {}

    def _output(self, section: str, wildcards: Any) -> Output:
        return getattr(self.settings, section)[wildcards.label]

    # ---- the report ------------------------------------------------------------------------------

    def caption(self, section: str, wildcards: Any) -> str:
        """Return what the report says below a table or figure."""
        output = self._output(section, wildcards)
        return output.keys.caption_text()

    @cached_property
    def overview(self) -> dict[str, str]:
        """Return what the report's first page says of the study, by heading, as its markup."""
        return overview(self.settings)


def _within(rounds: range, numbers: Iterable[int]) -> tuple[int, ...]:
    """Return those of some rounds, counted from 1, that a training job trains."""
    return tuple(number for number in numbers if number - 1 in rounds)


def _run(wildcards: Any) -> Run:
    """Return the run that a rule's wildcards name."""
    w = wildcards
    return Run(w.dataset, w.partition, w.backbone, w.method, int(w.seed))


@cache
def _warn_of_broken_plugins() -> None:
    """Name the plugins that cannot be used, which is an error where a study uses them.

    Once per process, and not again in the Snakemake that the launcher starts.
    """
    if LAUNCHER not in os.environ:
        for name, error in data_plugins.broken().items():
            print(f"warning: {error}; plugin '{name}' cannot be used", file=sys.stderr)
