"""A run's own protocol: the study's values, overridden by its partition's, then its method's."""

from collections.abc import Iterable
from dataclasses import replace

from fedloom.config.settings import Method, Settings
from fedloom.config.study import Protocol, Study
from fedloom.hooks.manifest import find

NO_PROTOCOL = Protocol()


def is_trial(settings: Settings, partition: str) -> bool:
    """Return True if the runs on a partition are trials of `study.tune`."""
    return "validation" in settings.partitions[partition].settings


def study_of(settings: Settings, partition: str, method: str | None = None) -> Study:
    """Return the study as a run has it: a trial's rounds and seed are those of `study.tune`.

    Args:
        partition, method: the run's labels; without a method, what the partition's runs share.
    """
    study = settings.protocols.get(partition, NO_PROTOCOL).over(settings.study)
    rounds = settings.methods[method].rounds if method is not None else None
    if rounds is not None:
        study = study.model_copy(update={"rounds": rounds})
    if settings.tuning is None or not is_trial(settings, partition):
        return study
    tuning = settings.tuning
    changes = {"rounds": tuning.rounds or study.rounds, "seeds": [tuning.seed]}
    return study.model_copy(update=changes | {"global_test": False})


def method_of(settings: Settings, partition: str, method: str) -> Method:
    """Return a method with the training options that it has on a partition."""
    found, protocol = settings.methods[method], settings.protocols.get(partition, NO_PROTOCOL)
    if not protocol.training.given:
        return found
    overrides = settings.study.training.given, protocol.training.given, found.own_training
    return replace(found, training=find(found.plugin).training(*overrides))


def methods_of(settings: Settings, labels: Iterable[str]) -> list[Method]:
    """List methods with the training options of each of the study's partitions."""
    partitions = settings.select.partitions
    return [method_of(settings, partition, label) for label in labels for partition in partitions]
