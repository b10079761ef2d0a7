"""Checks of a whole study that no entry of the config can tell alone."""

from math import ceil

from fedloom.common.errors import FedLoomError
from fedloom.config.held_out import held_out_count
from fedloom.config.protocols import study_of
from fedloom.config.reading import CONFIG
from fedloom.config.rounds import job_ends, reported
from fedloom.config.settings import Settings
from fedloom.config.study import Study

STUDY = f"{CONFIG} study"
LONGEST_CHAIN = 1000  # Snakemake walks along it by recursion: 1,200 jobs went, 2,000 failed


def check_study(settings: Settings) -> None:
    """Check what tables look for, and the clients, evaluations and jobs of all runs.

    Raises:
        FedLoomError: names the table, partition or method.
    """
    _check_evaluations(settings)
    _check_runs(settings)


def _check_evaluations(settings: Settings) -> None:
    """Check that no table looks for a round among evaluations of a sample of clients.

    Raises:
        FedLoomError: names the table.
    """
    if settings.study.evaluate_clients is None:
        return
    for label in settings.select.tables:
        if settings.tables[label].settings.get("target") is not None:
            raise FedLoomError(
                f"{CONFIG} tables.{label}.target: a sample of clients reaches it in another round; "
                "remove study.evaluate_clients, or leave the table out"
            )


def _check_runs(settings: Settings) -> None:
    """Check that every partition has clients enough for a round, and runs evaluations to report.

    Raises:
        FedLoomError: names the partition, or the method whose rounds are too few.
    """
    for label in settings.select.partitions:
        _check_cohort(settings, label)
        where = f"{CONFIG} partitions.{label}.protocol" if _protocol(settings, label) else STUDY
        studies = {where: study_of(settings, label)}
        for method in settings.select.methods:
            if settings.methods[method].rounds is not None:
                name = f"{CONFIG} methods.{method}: {where}"
                studies[name] = study_of(settings, label, method)
        for name, study in studies.items():
            reported(study, name)
            _check_chain(study, name)


def _check_chain(study: Study, where: str) -> None:
    """Check that the jobs of a run are few enough for Snakemake.

    Raises:
        FedLoomError: says how long a job must be.
    """
    chain = len(job_ends(study))
    if chain > LONGEST_CHAIN:
        raise FedLoomError(
            f"{where}: {study.rounds} rounds are a chain of {chain} jobs, and Snakemake fails on "
            f"chains much longer than {LONGEST_CHAIN}; set study.rounds_per_job to at least "
            f"{ceil(study.rounds / LONGEST_CHAIN)}"
        )


def _protocol(settings: Settings, partition: str) -> bool:
    """Return True if a partition's protocol overrides more than training options."""
    return bool(settings.protocols[partition].model_fields_set - {"training"})


def _check_cohort(settings: Settings, label: str) -> None:
    """Check that enough clients of a partition take part for a round, where the config can tell.

    Raises:
        FedLoomError: names the partition.
    """
    partition = settings.partitions[label]
    clients = partition.settings.get("clients")
    if clients is None:  # of a partition by domain, they follow from the dataset
        return
    training = clients - held_out_count(clients, partition.settings)
    wanted = study_of(settings, label).clients_per_round
    own = "clients_per_round" in settings.protocols[label].model_fields_set
    if wanted > training:
        where = f"{CONFIG} partitions.{label}.protocol" if own else STUDY
        raise FedLoomError(
            f"{where}.clients_per_round: {wanted} is more than the {training} participating "
            f"clients of partitions.{label}"
        )
