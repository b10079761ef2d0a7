"""The jobs of a study, each made from the settings and the wildcards of its rule.

Wildcards have their names of fedloom.study.paths; those whose argument is `labels` take a run too.
"""

from dataclasses import replace
from typing import Any

from fedloom.config.datasets import NOTHING_EXPECTED
from fedloom.config.protocols import is_trial, method_of, study_of
from fedloom.config.rounds import evaluated_rounds, job_ends, sampled_rounds
from fedloom.config.settings import VALIDATION, Backbone, FixedSeeds, Settings, Trial
from fedloom.config.study import Study
from fedloom.hooks.manifest import TEST_SETS, find
from fedloom.study import jobs
from fedloom.study.output_jobs import figure_job, table_job
from fedloom.study.runs import Run


def make_job(settings: Settings, rule: str, wildcards: Any) -> Any:
    """Return the job of a rule; that of `train` without the digest of its sources."""
    w = wildcards
    match rule:
        case "dataset":  # a store does not depend on estimates and notes of a recipe
            dataset = settings.datasets[w.dataset]
            plain = replace(dataset, expected=NOTHING_EXPECTED, domains=None, notes=())
            return jobs.DatasetJob(plain)
        case "partition":
            partition = settings.partitions[w.partition]  # who is tested elsewhere divides nothing
            keys = {k: v for k, v in partition.settings.items() if k != "transfer_to"}
            return jobs.PartitionJob(w.dataset, replace(partition, settings=keys), int(w.seed))
        case "partition_chart":
            return jobs.PartitionChartJob(w.dataset, w.partition, int(w.seed))
        case "cache":
            return jobs.CacheJob(w.cache, w.dataset, settings.backbones[w.backbone])
        case "prototypes":
            study = study_of(settings, w.partition)
            clients, sampling = study.clients_per_round, study.fixed_seeds.sampling
            labels = w.dataset, w.partition, w.backbone
            return jobs.PrototypesJob(*labels, int(w.seed), clients, sampling)
        case "block_accuracy":
            return jobs.BlockAccuracyJob(w.dataset, w.backbone)
        case "train":
            return _train_job(settings, w)
        case "choose":
            tune, labels = settings.study.tune, (w.dataset, w.partition, w.backbone, w.method)
            assert tune is not None
            last = study_of(settings, w.partition + VALIDATION, w.method).rounds
            return jobs.ChooseJob(*labels, settings.trials[w.method], tune.seed, last)
        case "evaluate":
            study, trial = study_of_run(settings, w), is_trial(settings, w.partition)
            return jobs.EvaluateJob(Run.of(w), tuple(job_ends(study)), study.confusion, trial)
        case "artefact":
            last = study_of_run(settings, w).rounds
            targets = transferred_to(settings, w) if w.artefact == TEST_SETS else ()
            return jobs.ArtefactJob(run_spec(settings, Run.of(w)), last, w.artefact, targets)
        case "table":
            return table_job(settings, settings.tables[w.label])
        case "figure":
            return figure_job(settings, settings.figures[w.label])
    raise ValueError(f"no rule '{rule}'")


def _train_job(settings: Settings, wildcards: Any) -> jobs.TrainJob:
    study, rounds = study_of_run(settings, wildcards), rounds_of(settings, wildcards)
    evaluated, sampled = evaluations(study, rounds)
    return jobs.TrainJob(
        spec=run_spec(settings, Run.of(wildcards)),
        first=rounds.start,
        last=rounds.stop,
        evaluate=evaluated,
        global_test=study.global_test,
        sources="",
        confusion=study.confusion,
        trial=is_trial(settings, wildcards.partition),
        sampled=sampled,
        evaluate_clients=study.evaluate_clients if sampled else None,
    )


# ---- what jobs of a run are made of --------------------------------------------------------------


def run_spec(settings: Settings, run: Run) -> jobs.RunSpec:
    """Return everything that a run's numbers depend on, except the options of `choose`."""
    study, method = study_of_run(settings, run), method_of(settings, run.partition, run.method)
    trials = trials_of(settings, run)
    tried = [trial.options.get("training.schedule") for trial in trials]
    # methods without training have no schedule
    cosine = "cosine" in (method.training.get("schedule"), *tried)
    return jobs.RunSpec(
        run=run,
        backbone=backbone_of(settings, run),
        method=jobs.MethodSpec.of(method),
        clients_per_round=study.clients_per_round,
        rounds_per_job=study.rounds_per_job,
        schedule_rounds=study.rounds if cosine or find(method.plugin).uses_rounds else None,
        stacked=study.stacked,
        tuned=bool(trials),
        fixed=FixedSeeds(study.fixed_seeds.sampling, study.fixed_seeds.initialisation),
    )


def transferred_to(settings: Settings, labels: Any) -> tuple[str, ...]:
    """Return the datasets, others than the run's, that its clients are tested on after training."""
    targets = settings.partitions[labels.partition].settings.get("transfer_to", ())
    return tuple(label for label in targets if label != labels.dataset)


def study_of_run(settings: Settings, labels: Any) -> Study:
    """Return the study as the run of these labels has it, see fedloom.config.protocols."""
    return study_of(settings, labels.partition, labels.method)


def trials_of(settings: Settings, labels: Any) -> tuple[Trial, ...]:
    """Return the trials that a run's options are chosen from; none if they are the config's."""
    if is_trial(settings, labels.partition):
        return ()
    return settings.trials.get(labels.method, ())


def backbone_of(settings: Settings, labels: Any) -> Backbone:
    """Return a run's backbone, with the settings that its study adds."""
    study, backbone = settings.study, settings.backbones[labels.backbone]
    added: dict[str, Any] = {}
    if study.precision != "float32":  # so that float32 results keep their jobs
        added["precision"] = study.precision
    if study.gradient_checkpointing:
        added["gradient_checkpointing"] = True
    return replace(backbone, settings=backbone.settings | added)


def rounds_of(settings: Settings, wildcards: Any) -> range:
    """Return the rounds of a training job, counted from 0."""
    size, last = settings.study.rounds_per_job, int(wildcards.end)
    return range((last - 1) // size * size, last)


def evaluations(study: Study, rounds: range) -> list[tuple[int, ...]]:
    """Return those of a job's rounds after which clients are evaluated: all, sampled."""
    every = evaluated_rounds(study), sampled_rounds(study)
    return [tuple(n for n in numbers if n - 1 in rounds) for numbers in every]
