"""The plan of a study: what the Snakefile asks, rule by rule."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedloom.common.receipts import digest, sha256
from fedloom.config.datasets import NOTHING_EXPECTED
from fedloom.config.protocols import is_trial, method_of, study_of
from fedloom.config.rounds import evaluated_rounds, job_ends, sampled_rounds
from fedloom.config.settings import (
    VALIDATION,
    Backbone,
    FixedSeeds,
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
    resources,
    runs,
    selected,
    staleness,
)
from fedloom.study.resources import Resources, Work, Workload
from fedloom.study.runs import Run


@dataclass(frozen=True)
class Plan:
    """Answers what Snakemake needs to know: jobs, inputs, sources and labels.

    Methods take a rule's wildcards, which have their names of fedloom.study.paths; those whose
    argument is `labels` take a run too.
    """

    settings: Settings
    _digests: dict[Any, str] = field(default_factory=dict)  # of source files, and of jobs' sources

    # ---- what the study makes --------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The study's name."""
        return self.settings.study.name

    @property
    def tables(self) -> list[str]:
        """The study's tables, as Markdown files."""
        return self._outputs(paths.TABLE, self.settings.select.tables)

    @property
    def figures(self) -> list[str]:
        """The study's figures, as PDF files."""
        return self._outputs(paths.FIGURE, self.settings.select.figures)

    def _outputs(self, pattern: str, labels: Iterable[str]) -> list[str]:
        return [str(paths.at(pattern, study=self.name, label=label)) for label in labels]

    @property
    def partition_charts(self) -> list[str]:
        """A chart of each partition, for the first seed."""
        seed = self.settings.study.seeds[0]
        return [
            str(paths.at(paths.PARTITION_CHART, **vars(scenario), seed=seed))
            for scenario in runs.scenarios(self.settings)
        ]

    @cached_property
    def runs(self) -> list[Run]:
        """The runs that the study's tables and figures show, without the trials before them."""
        return runs.runs(self.settings)

    @property
    def run_tables(self) -> list[str]:
        """The names of the tables that a run has (paths.RUN_TABLES)."""
        confusion = self.settings.study.confusion
        return [name for name in paths.RUN_TABLES if confusion or name != "confusion"]

    def summary(self) -> str:
        """Return the first table and the places of all results, for the end of a run."""
        labels = self.settings.select.tables
        if not labels or not Path(self.tables[0]).is_file():
            return f"logs    {paths.LOGS}"  # other targets than the study's tables
        (figures,) = self._outputs(paths.FIGURE, ["<label>"])
        return "\n".join(
            [
                Path(self.tables[0]).read_text(),
                f"tables  {Path(self.tables[0]).parent}/{{{','.join(labels)}}}"
                ".{md,csv,tex,html,parquet}",
                f"figures {figures.removesuffix('.pdf')}.{{pdf,png}}",
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
        # a store does not depend on estimates and notes of a recipe
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
        clients, sampling = study.clients_per_round, study.fixed_seeds.sampling
        seed = int(w.seed)
        return jobs.PrototypesJob(w.dataset, w.partition, w.backbone, seed, clients, sampling)

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
        """Return everything that a run's numbers depend on, except the options of `choose`."""
        study, method = self.study(run), method_of(self.settings, run.partition, run.method)
        tried = [trial.options.get("training.schedule") for trial in self.trials_of(run)]
        # methods without training have no schedule
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
        evaluated, sampled = self._evaluations(wildcards)
        spec = self.run_spec(_run(wildcards))
        return jobs.TrainJob(
            spec=spec,
            first=rounds.start,
            last=rounds.stop,
            evaluate=evaluated,
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

    def _evaluations(self, wildcards: Any) -> list[tuple[int, ...]]:
        """Return the rounds of a training job after which clients are evaluated: all, sampled."""
        study, rounds = self.study(wildcards), self._rounds(wildcards)
        every = evaluated_rounds(study), sampled_rounds(study)
        return [tuple(n for n in numbers if n - 1 in rounds) for numbers in every]

    def choose_job(self, wildcards: Any) -> jobs.ChooseJob:
        w, tune, trials = wildcards, self.settings.study.tune, self.settings.trials
        assert tune is not None
        last = study_of(self.settings, w.partition + VALIDATION, w.method).rounds
        return jobs.ChooseJob(
            w.dataset, w.partition, w.backbone, w.method, trials[w.method], tune.seed, last
        )

    def evaluate_job(self, wildcards: Any) -> jobs.EvaluateJob:
        study, trial = self.study(wildcards), is_trial(self.settings, wildcards.partition)
        return jobs.EvaluateJob(_run(wildcards), tuple(job_ends(study)), study.confusion, trial)

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
        """Return the study as a run has it, see fedloom.config.protocols."""
        return study_of(self.settings, labels.partition, labels.method)

    def trials_of(self, labels: Any) -> tuple[Trial, ...]:
        """Return the trials that a run's options are chosen from; none if they are the config's."""
        if is_trial(self.settings, labels.partition):
            return ()
        return self.settings.trials.get(labels.method, ())

    # ---- memory and time -------------------------------------------------------------------------

    def resources(
        self, rule: str, wildcards: Any, attempt: int = 1, on_gpu: bool = False
    ) -> Resources:
        """Return the request of a job of this rule to a cluster."""
        return resources.request(self.work(rule, wildcards), rule == "train", attempt, on_gpu)

    def work(self, rule: str, wildcards: Any) -> Work:
        """Return what a job of this rule takes."""
        w, settings = wildcards, self.settings
        dataset = settings.datasets[w.dataset]
        if rule == "dataset":
            return resources.of_dataset(dataset)
        backbone = settings.backbones[w.backbone]
        if rule == "cache":
            return resources.of_cache(dataset, backbone)
        if rule in ("prototypes", "block_accuracy"):
            return resources.of_class_tokens(dataset, backbone)
        if rule == "artefact":
            return resources.of_artefact(self.workload(w, w.method))
        return self.training_work(w, len(self._rounds(w)), *map(len, self._evaluations(w)))

    def training_work(self, labels: Any, *counts: int) -> Work:
        """Return the most that a run's training may take: with the options of any of its trials.

        Args:
            counts: numbers of rounds, of evaluations, and of those of sampled clients.
        """
        methods = (labels.method, *(trial.label for trial in self.trials_of(labels)))
        works = [resources.of_training(self.workload(labels, m), *counts) for m in methods]
        return resources.most(works)

    def workload(self, labels: Any, method: str) -> Workload:
        """Return what the estimate of a run, or of one of its trials, is made of."""
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
        """Return the data files that a run reads, see paths.run_inputs."""
        return paths.run_inputs(_run(labels), self.settings.methods[labels.method].needs)

    def job_files(self, wildcards: Any, pattern: str) -> list[str]:
        """Return a file of every job of a run."""
        return _files(wildcards, pattern, job_ends(self.study(wildcards)))

    def start(self, wildcards: Any, pattern: str) -> list[str]:
        """Return a file of the job before; the first job of a run has none."""
        first = self._rounds(wildcards).start
        return _files(wildcards, pattern, [first] if first else [])

    def last(self, wildcards: Any, pattern: str) -> str:
        """Return a file of the last job of a run."""
        return self.job_files(wildcards, pattern)[-1]

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
        return plot_inputs.files(job, getattr(self.settings, section)[wildcards.label].keys)

    def sources(self, rule: str, job: Any) -> str:
        """Return a digest of the source files that a rule's job depends on.

        It is a parameter of every rule, so that an edit makes Snakemake run the job again. Files
        are as they were when the plan first read them.
        """
        code, known = staleness.code_of(rule, job), self._digests
        key = (code.modules, tuple(plugin.folder for plugin in code.plugins))
        if key not in known:
            files = staleness.files_of(code)
            known |= {file: sha256(Path(file)) for file in files if file not in known}
            known[key] = digest({file: known[file] for file in files})
        return known[key]

    def caption(self, section: str, wildcards: Any) -> str:
        """Return what the report says below a table or figure."""
        return getattr(self.settings, section)[wildcards.label].keys.caption


def _run(labels: Any) -> Run:
    """Return the run that a rule's wildcards name."""
    w = labels
    return Run(w.dataset, w.partition, w.backbone, w.method, int(w.seed))


def _files(wildcards: Any, pattern: str, ends: Iterable[int]) -> list[str]:
    """Return a file of each of a run's jobs that end at these rounds."""
    run = _run(wildcards)
    return [str(paths.at(pattern, run, end=paths.end(number))) for number in ends]
