"""Estimates of a study's jobs by their wildcards, made of fedloom.study.resources."""

from dataclasses import astuple
from typing import Any

from fedloom.config.protocols import method_of
from fedloom.config.settings import Settings
from fedloom.hooks.manifest import TEST_SETS, find
from fedloom.study import make_jobs, resources
from fedloom.study.resources import Work, Workload, of_training


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
        others = settings.partitions[w.partition].settings.get("transfer_to", ())
        labels = (w.dataset, *others) if w.artefact == TEST_SETS else ()
        shared = sum(resources.contents(settings.datasets[label]).test for label in labels)
        return resources.of_artefact(workload(settings, w, w.method), shared)
    return of_run(settings, w, make_jobs.rounds_of(settings, w))


def of_run(settings: Settings, labels: Any, rounds: range | None = None) -> Work:
    """Return the most that a run's training may take: with the options of any of its trials.

    Args:
        rounds: of a job, counted from 0; None: all of the run's.
    """
    study, trials = make_jobs.study_of_run(settings, labels), make_jobs.trials_of(settings, labels)
    rounds = range(study.rounds) if rounds is None else rounds
    numbers = [len(each) for each in make_jobs.evaluations(study, rounds)]
    methods = (labels.method, *(trial.label for trial in trials))
    each = [of_training(workload(settings, labels, m), len(rounds), *numbers) for m in methods]
    return Work(*map(max, zip(*map(astuple, each), strict=True)))


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
