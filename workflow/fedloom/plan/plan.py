"""The plan of a study: what the Snakefile asks, rule by rule."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from pathlib import Path
from typing import Any

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import check_usable
from fedloom.common.receipts import digest
from fedloom.methods.manifest import find
from fedloom.plan import choices, code, jobs, paths, provenance, resources, shown, staleness
from fedloom.plan.kinds import Kind, as_rst, kind_of
from fedloom.plan.reading import merge, read
from fedloom.plan.resolve import resolve
from fedloom.plan.resources import Resources
from fedloom.plan.runs import Run, evaluated_rounds, job_ends, reported_rounds
from fedloom.plan.settings import Output, Settings, Study, Trial
from fedloom.plan.weights import local_weights

CONFIG = ROOT / "config.yaml"


@dataclass(frozen=True)
class Plan:
    """Answers what Snakemake needs to know: jobs, inputs, sources and labels.

    Methods take a rule's wildcards, which have their names of fedloom.plan.paths.
    """

    settings: Settings

    @classmethod
    def load(cls, files: Sequence[Path] = (), overrides: Mapping[str, Any] | None = None) -> "Plan":
        """Read config.yaml and the study's files over it, then `overrides` (--config).

        An error that a person can mend ends the process with one line.
        """
        try:
            check_usable(Path(paths.RESULTS))
            every = list(dict.fromkeys([CONFIG, *map(Path, files)]))
            config = merge([(path, read(path)) for path in every], dict(overrides or {}))
            plan = cls(resolve(config, every))
            for label in plan.settings.select.methods:  # what is no Python is said here, in a line
                staleness.plugin_sources(plan.settings.methods[label].plugin)
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
        chosen, seed = self.settings.select, self.settings.study.seeds[0]
        return [
            str(paths.at(paths.PARTITION_CHART, dataset=d, partition=p, seed=seed))
            for d, p in product(chosen.datasets, chosen.partitions)
        ]

    def if_confusion(self, **files: Any) -> dict[str, Any]:
        """Return the files that a rule has only where the study asks for confusion matrices."""
        return files if self.settings.study.confusion else {}

    def _table(self, label: str) -> Path:
        return paths.at(paths.TABLE, study=self.name, label=label)

    def summary(self) -> str:
        """Return the first table and where everything lies, for the end of a run."""
        select = self.settings.select
        if not self._table(select.tables[0]).is_file():
            return f"logs    {paths.LOGS}"  # other targets than the study's tables
        folder = self._table("x").parent
        figures = paths.at(paths.FIGURE, study=self.name, label="<label>").with_suffix("")
        return "\n".join(
            [
                self._table(select.tables[0]).read_text(),
                f"tables  {folder}/{{{','.join(select.tables)}}}.{{md,csv,tex,html,parquet}}",
                f"figures {figures}.{{pdf,png}}",
                "runs    results/runs/<dataset>/<partition>/<backbone>/<method>/seed<k>/",
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
        return jobs.DatasetJob(self.settings.datasets[wildcards.dataset])

    def partition_job(self, wildcards: Any) -> jobs.PartitionJob:
        partition = self.settings.partitions[wildcards.partition]
        return jobs.PartitionJob(wildcards.dataset, partition, int(wildcards.seed))

    def cache_job(self, wildcards: Any) -> jobs.CacheJob:
        backbone = self.settings.backbones[wildcards.backbone]
        return jobs.CacheJob(wildcards.cache, wildcards.dataset, backbone)

    def prototypes_job(self, wildcards: Any) -> jobs.PrototypesJob:
        w = wildcards
        clients = self.settings.study.clients_per_round
        return jobs.PrototypesJob(w.dataset, w.partition, w.backbone, int(w.seed), clients)

    def run_spec(self, run: Run) -> jobs.RunSpec:
        """Return all that bears on a run's numbers, but for what `choose` adds if it is tuned."""
        study, method = self._study(run), self.settings.methods[run.method]
        backbone = self.settings.backbones[run.backbone]
        if study.precision != "float32":  # so that what was computed in it keeps its job
            settings = backbone.settings | {"precision": study.precision}
            backbone = replace(backbone, settings=settings)
        if study.gradient_checkpointing:
            settings = backbone.settings | {"gradient_checkpointing": True}
            backbone = replace(backbone, settings=settings)
        tried = [trial.options.get("training.schedule") for trial in self._trials(run)]
        # what is not trained has no schedule
        cosine = "cosine" in (method.training.get("schedule"), *tried)
        return jobs.RunSpec(
            run=run,
            backbone=backbone,
            method=jobs.MethodSpec.of(method),
            clients_per_round=study.clients_per_round,
            rounds_per_job=study.rounds_per_job,
            schedule_rounds=study.rounds if cosine else None,
            stacked=study.stacked,
            tuned=bool(self._trials(run)),
        )

    def train_job(self, wildcards: Any) -> jobs.TrainJob:
        study, last = self._study(wildcards), int(wildcards.end)
        first = (last - 1) // study.rounds_per_job * study.rounds_per_job
        return jobs.TrainJob(
            spec=self.run_spec(_run(wildcards)),
            first=first,
            last=last,
            evaluate=tuple(n for n in evaluated_rounds(study) if first < n <= last),
            global_test=study.global_test,
            sources=self.digest(self.run_sources("train", wildcards)),
            confusion=study.confusion,
            trial=self._of_trials(wildcards),
        )

    def choose_job(self, wildcards: Any) -> jobs.ChooseJob:
        w, tuning = wildcards, self.settings.tuning
        assert tuning is not None
        return jobs.ChooseJob(
            dataset=w.dataset,
            partition=w.partition,
            backbone=w.backbone,
            method=w.method,
            trials=tuning.trials[w.method],
            seed=tuning.study.seeds[0],
            last=tuning.study.rounds,
        )

    def evaluate_job(self, wildcards: Any) -> jobs.EvaluateJob:
        study = self._study(wildcards)
        return jobs.EvaluateJob(_run(wildcards), tuple(job_ends(study)), study.confusion)

    def artefact_job(self, wildcards: Any) -> jobs.ArtefactJob:
        spec, last = self.run_spec(_run(wildcards)), self._study(wildcards).rounds
        sources = self.digest(self.run_sources("artefact", wildcards))
        return jobs.ArtefactJob(spec, last, wildcards.artefact, sources)

    def block_accuracy_job(self, wildcards: Any) -> jobs.BlockAccuracyJob:
        return jobs.BlockAccuracyJob(wildcards.dataset, wildcards.backbone)

    def partition_chart_job(self, wildcards: Any) -> jobs.PartitionChartJob:
        return jobs.PartitionChartJob(wildcards.dataset, wildcards.partition, int(wildcards.seed))

    def table_job(self, wildcards: Any) -> jobs.TableJob:
        study, table = self.settings.study, self.settings.tables[wildcards.label]
        return jobs.TableJob(
            study=study.name,
            label=table.label,
            kind=table.kind,
            title=table.title,
            settings=table.settings,
            rounds=tuple(reported_rounds(study)),
            global_test=study.global_test,
            published=table.published,
            shown=self._shown(table),
            tuned=self._tuned(table),
        )

    def _tuned(self, output: Output) -> jobs.Tuned | None:
        """Return how the options of a table's methods were chosen, if they were."""
        tuning = self.settings.tuning
        labels = [m for m in output.methods if tuning and tuning.trials.get(m)]
        if tuning is None or not labels:
            return None
        study, trials = tuning.study, len(tuning.trials[labels[0]])
        return jobs.Tuned(tuple(labels), trials, study.rounds, study.seeds[0], tuning.share)

    def figure_job(self, wildcards: Any) -> jobs.FigureJob:
        study, figure = self.settings.study, self.settings.figures[wildcards.label]
        chosen, of_backbones = self.settings.select, self._kind(figure).shows == "backbones"
        pairs = product(chosen.datasets, chosen.backbones) if of_backbones else ()
        partitions = [self.settings.partitions[label] for label in chosen.partitions]
        return jobs.FigureJob(
            study=study.name,
            label=figure.label,
            kind=figure.kind,
            settings=figure.settings,
            rounds=tuple(reported_rounds(study)),
            shots={p.label: p.settings["shots"] for p in partitions if "shots" in p.settings},
            shown=None if of_backbones else self._shown(figure),
            backbones=tuple(f"{dataset}/{backbone}" for dataset, backbone in pairs),
        )

    def pretrain_job(self, wildcards: Any) -> jobs.PretrainJob:
        return jobs.PretrainJob(wildcards.model, seed=0)

    def _kind(self, output: Output) -> Kind:
        return kind_of(output.section, output.kind)

    def _shown(self, output: Output) -> jobs.Shown:
        """Return the runs that a table or figure shows, in the order of the study's methods."""
        chosen, kind = self.settings.select, self._kind(output)
        scenarios = product(chosen.datasets, chosen.partitions, chosen.backbones)
        seeds = self.settings.study.seeds
        return jobs.Shown(
            scenarios=tuple("/".join(labels) for labels in scenarios),
            methods=self._shown_methods([m for m in chosen.methods if m in output.methods]),
            seeds=seeds if kind.seeds == "all" else seeds[:1],
            artefact=kind.artefact_of(output.settings),
        )

    def _shown_methods(self, labels: list[str]) -> tuple[jobs.ShownMethod | jobs.ShownGrid, ...]:
        methods = self.settings.methods
        items: list[jobs.ShownMethod | jobs.ShownGrid] = []
        for grid, group in groupby(labels, lambda label: self._grid_of(label)):
            if grid is None:
                items += [jobs.ShownMethod(m, methods[m].title, methods[m].look) for m in group]
                continue
            members = [methods[label].member for label in group]
            positions = [member.position for member in members if member]
            first = next(m for m in methods.values() if self._grid_of(m.label) == grid)
            items.append(jobs.ShownGrid(self.settings.grids[grid], tuple(positions), first.look))
        return tuple(items)

    def _grid_of(self, label: str) -> str | None:
        """Return the grid that a method's label is a member of."""
        member = self.settings.methods[label].member
        return None if member is None else member.grid

    def _study(self, labels: Any) -> Study:
        """Return the study as the runs on a partition have it: its trials are on one of their own.

        Args:
            labels: a run, or wildcards.
        """
        tuning = self.settings.tuning
        return tuning.study if tuning and self._of_trials(labels) else self.settings.study

    def _of_trials(self, labels: Any) -> bool:
        """True if a run's partition is one that trials are trained on."""
        return "validation" in self.settings.partitions[labels.partition].settings

    def _trials(self, labels: Any) -> tuple[Trial, ...]:
        """Return the trials that a run's options are chosen from; none if they are the config's."""
        tuning = self.settings.tuning
        if tuning is None or self._study(labels) is tuning.study:
            return ()
        return tuning.trials.get(labels.method, ())

    # ---- memory and time -------------------------------------------------------------------------

    def resources(self, rule: str, wildcards: Any) -> Resources:
        """Return what a job of this rule asks a cluster for."""
        w, settings = wildcards, self.settings
        dataset = settings.datasets[w.dataset]
        if rule == "dataset":
            return resources.of_dataset(dataset)
        backbone = settings.backbones[w.backbone]
        if rule == "cache":
            return resources.of_cache(dataset, backbone)
        if rule in ("prototypes", "block_accuracy"):
            return resources.of_class_tokens(dataset, backbone)
        partition, job = settings.partitions[w.partition], None
        if rule != "artefact":
            job = self.train_job(w)

        def of(label: str) -> Resources:
            method = settings.methods[label]
            plugin = find(method.plugin)
            run = resources.Workload(self._study(w), dataset, partition, backbone, method, plugin)
            if job is None:
                return resources.of_artefact(run)
            return resources.of_training(run, job.last - job.first, len(job.evaluate))

        # a tuned run may get the options of any of its trials
        asked = [of(label) for label in (w.method, *(trial.label for trial in self._trials(w)))]
        return Resources(max(r.mem_mb for r in asked), max(r.runtime for r in asked))

    # ---- inputs ----------------------------------------------------------------------------------

    def needs(self, wildcards: Any, cache: str) -> bool:
        """True if the run's method reads features, patches or prototypes, as `cache` says."""
        return cache in self.settings.methods[wildcards.method].needs

    def job_files(self, wildcards: Any, pattern: str) -> list[str]:
        """Return a file of every job of a run."""
        run = _run(wildcards)
        ends = job_ends(self._study(wildcards))
        return [str(paths.at(pattern, run, end=paths.end(number))) for number in ends]

    def start(self, wildcards: Any, pattern: str) -> list[str]:
        """Return a file of the job before; the first job of a run has none."""
        first = self.train_job(wildcards).first
        run = _run(wildcards)
        return [str(paths.at(pattern, run, end=paths.end(first)))] if first else []

    def last(self, wildcards: Any, pattern: str) -> str:
        """Return a file of the last job of a run."""
        end = paths.end(self._study(wildcards).rounds)
        return str(paths.at(pattern, _run(wildcards), end=end))

    def trials(self, wildcards: Any) -> list[str]:
        """Return the evaluations of a method's trials."""
        return [str(path) for _, path in choices.evaluations(self.choose_job(wildcards))]

    def choice(self, wildcards: Any) -> list[str]:
        """Return the file with the options that a run is trained with, if they are tuned."""
        return [str(paths.at(paths.CHOICE, _run(wildcards)))] if self._trials(wildcards) else []

    def weights(self, wildcards: Any) -> list[str]:
        """Return the backbone's local weights file, if it has one."""
        path = local_weights(self.settings.backbones[wildcards.backbone])
        return [] if path is None else staleness.relative([path])

    def shown_files(self, section: str, wildcards: Any) -> list[str]:
        """Return the Parquet files that a table or figure is made of."""
        job = self.table_job(wildcards) if section == "tables" else self.figure_job(wildcards)
        return shown.files(job)

    # ---- sources ---------------------------------------------------------------------------------

    def digest(self, sources: Sequence[str]) -> str:
        """Return a digest of source files as they were when the plan first read them.

        It is a parameter of every rule: an edit while a job works is noticed at the next start.
        """
        for file in sources:
            if file not in self._hashes:
                self._hashes.update(provenance.hashes([file]))
        return digest({file: self._hashes[file] for file in sources})

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {}

    def stage_sources(self, stage: str) -> list[str]:
        """Return the sources of a stage that imports nothing by name."""
        return code.of_stage(stage).files()

    def dataset_sources(self, wildcards: Any) -> list[str]:
        return code.of_dataset(self.settings.datasets[wildcards.dataset]).files()

    def partition_sources(self, wildcards: Any) -> list[str]:
        scheme = self.settings.partitions[wildcards.partition].scheme
        return code.of_data("partition", "scheme", scheme).files()

    def cache_sources(self, wildcards: Any) -> list[str]:
        return code.of_cache(self.settings.backbones[wildcards.backbone].family).files()

    def run_sources(self, stage: str, wildcards: Any) -> list[str]:
        """Return the sources of a stage, of the run's backbone, its plugin and its wrappers."""
        method = self.settings.methods[wildcards.method]
        names = [method.plugin, *(wrapper.plugin for wrapper in method.wrappers)]
        family = self.settings.backbones[wildcards.backbone].family
        return staleness.run_sources(stage, family, names)

    def output_sources(self, section: str, wildcards: Any) -> list[str]:
        """Return the sources of a table or figure of its kind."""
        kind = getattr(self.settings, section)[wildcards.label].kind
        return code.of_output(section.removesuffix("s"), kind).files()

    def pretrain_sources(self, model: str) -> list[str]:
        return code.of_pretraining(model).files()

    # ---- the report ------------------------------------------------------------------------------

    def caption(self, section: str, wildcards: Any) -> str:
        """Return what the report says below a table or figure."""
        output = getattr(self.settings, section)[wildcards.label]
        return self._kind(output).caption_of(output.settings)

    @cached_property
    def overview(self) -> dict[str, str]:
        """Return what the report's first page says of the study, by heading, as its markup."""
        select, study = self.settings.select, self.settings.study
        texts = {
            "Data sets": ", ".join(select.datasets),
            "Partitions": ", ".join(select.partitions),
            "Backbones": ", ".join(select.backbones),
            "Methods": ", ".join(self.settings.methods[label].title for label in select.methods),
            "Rounds": f"{study.rounds}, with {study.clients_per_round} clients each",
            "Seeds": ", ".join(map(str, study.seeds)),
        }
        return {heading: as_rst(text) for heading, text in texts.items()}


def _run(wildcards: Any) -> Run:
    """Return the run that a rule's wildcards name."""
    w = wildcards
    return Run(w.dataset, w.partition, w.backbone, w.method, int(w.seed))
