"""Estimates of a study's jobs by their wildcards, made of fedloom.study.resources."""

from typing import Any

from fedloom.config.protocols import method_of
from fedloom.config.settings import Settings
from fedloom.hooks.manifest import find
from fedloom.study import make_jobs, resources
from fedloom.study.resources import Work, Workload


def of_job(settings: Settings, rule: str, wildcards: Any) -> Work:
    """Return what a job of this rule takes."""
    w = wildcards
    dataset = settings.datasets[w.dataset]
    if rule == "dataset":
        return resources.of_dataset(dataset)
    backbone = settings.backbones[w.backbone]
    if rule == "cache":
        return resources.of_cache(dataset, backbone)
    if rule in ("prototypes", "block_accuracy"):
        return resources.of_class_tokens(dataset, backbone)
    if rule == "artefact":
        return resources.of_artefact(workload(settings, w, w.method))
    rounds, evaluations = make_jobs.rounds_of(settings, w), make_jobs.evaluations(settings, w)
    return of_run(settings, w, len(rounds), *map(len, evaluations))


def of_run(settings: Settings, labels: Any, *counts: int) -> Work:
    """Return the most that a run's training may take: with the options of any of its trials.

    Args:
        counts: numbers of rounds, of evaluations, and of those of sampled clients.
    """
    trials = make_jobs.trials_of(settings, labels)
    methods = (labels.method, *(trial.label for trial in trials))
    works = [resources.of_training(workload(settings, labels, m), *counts) for m in methods]
    return resources.most(works)


def workload(settings: Settings, labels: Any, method: str) -> Workload:
    """Return what the estimate of a run, or of one of its trials, is made of."""
    found = method_of(settings, labels.partition, method)
    return Workload(
        study=make_jobs.study_of_run(settings, labels),
        dataset=settings.datasets[labels.dataset],
        partition=settings.partitions[labels.partition],
        backbone=make_jobs.backbone_of(settings, labels),
        method=found,
        plugin=find(found.plugin),
    )
