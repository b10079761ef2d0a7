"""A run's protocol: the study's values, overridden by its partition's, then its method's."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from math import ceil

from fedloom.common.errors import FedLoomError
from fedloom.config.partitions import held_out_count
from fedloom.config.reading import CONFIG
from fedloom.config.rounds import job_ends, reported
from fedloom.config.settings import Method, Settings
from fedloom.config.study import Protocol, Study
from fedloom.hooks.manifest import find

NO_PROTOCOL = Protocol()
STUDY = f"{CONFIG} study"
UNSEEN = {"novel_classes", "transfer_to"}  # keys of a partition
LONGEST_CHAIN = 1000  # Snakemake walks along it by recursion: 1,200 jobs went, 2,000 failed


def is_trial(settings: Settings, partition: str) -> bool:
    """Return True if the runs on a partition are trials of `study.tune`."""
    return "validation" in settings.partitions[partition].settings


def study_of(settings: Settings, partition: str, method: str | None = None) -> Study:
    """Return the study as a run has it: a trial's rounds and seed are those of `study.tune`.

    Without a method, it is what the partition's runs share.
    """
    study = settings.protocols.get(partition, NO_PROTOCOL).over(settings.study)
    rounds = settings.methods[method].rounds if method is not None else None
    if rounds is not None:
        study = study.model_copy(update={"rounds": rounds})
    if study.tune is None or not is_trial(settings, partition):
        return study
    changes = {"rounds": study.tune.rounds or study.rounds, "seeds": [study.tune.seed]}
    return study.model_copy(update=changes | {"global_test": False})


def method_of(settings: Settings, partition: str, method: str) -> Method:
    """Return a method with the training options that it has on a partition."""
    found, protocol = settings.methods[method], settings.protocols.get(partition, NO_PROTOCOL)
    if not protocol.training.given:
        return found
    overrides = settings.study.training.given, protocol.training.given, found.own_training
    return replace(found, training=find(found.plugin).training(*overrides))


def check_parts(settings: Settings, labels: Iterable[str]) -> None:
    """Check that methods allow to be trained and tested as the study's partitions ask for.

    Their batches and cohorts may be divided, and clients tested on classes that none trains on.
    """
    for label, partition in product(labels, settings.select.partitions):
        method = method_of(settings, partition, label)
        for key in UNSEEN & settings.partitions[partition].settings.keys():
            reason = find(method.plugin).refused_unseen(method.options)
            if reason is not None:
                raise FedLoomError(
                    f"{CONFIG} methods.{method.label}: partitions.{partition}.{key} tests clients "
                    f"on classes that none trains on, but {reason}; run one without the other"
                )
        size, stacked = method.training["micro_batch"], settings.study.stacked
        reason = find(method.plugin).refused_parts(method.options, size, stacked)
        if reason is not None:
            raise FedLoomError(f"{CONFIG} methods.{method.label}: {reason}")


def check_runs(settings: Settings) -> None:
    """Check the clients, evaluations and jobs of all runs."""
    for label in settings.select.partitions:
        own = settings.protocols[label].model_fields_set - {"training"}
        where = f"{CONFIG} partitions.{label}.protocol" if own else STUDY
        studies = {where: study_of(settings, label)}
        _check_cohort(settings, label, where if "clients_per_round" in own else STUDY)
        for method in settings.select.methods:
            if settings.methods[method].rounds is not None:
                name = f"{CONFIG} methods.{method}: {where}"
                studies[name] = study_of(settings, label, method)
        for name, study in studies.items():
            reported(study, name)
            chain = len(job_ends(study))
            if chain > LONGEST_CHAIN:
                raise FedLoomError(
                    f"{name}: {study.rounds} rounds are a chain of {chain} jobs, and Snakemake "
                    f"fails on chains much longer than {LONGEST_CHAIN}; set study.rounds_per_job "
                    f"to at least {ceil(study.rounds / LONGEST_CHAIN)}"
                )


def _check_cohort(settings: Settings, partition: str, where: str) -> None:
    """Check that enough clients of a partition train for a round, where the config can tell."""
    keys = settings.partitions[partition].settings
    if "clients" not in keys:  # of a partition by domain, they follow from the dataset
        return
    training = keys["clients"] - held_out_count(keys["clients"], keys)
    wanted = study_of(settings, partition).clients_per_round
    if wanted > training:
        raise FedLoomError(
            f"{where}.clients_per_round: {wanted} is more than the {training} participating "
            f"clients of partitions.{partition}"
        )
