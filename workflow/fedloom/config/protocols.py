"""A run's own protocol: the study's values, overridden by its partition's, then its method's."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fedloom.config.settings import Method, Protocol, Settings, Study
from fedloom.hooks.manifest import find

NO_PROTOCOL = Protocol({}, {})


def protocol_of(entry: dict[str, Any] | None) -> Protocol:
    """Return what a partition's key `protocol` overrides; None stands for nothing."""
    values = dict(entry or {})
    training = values.pop("training", {})
    return Protocol(values | values.pop("report", {}), training)


def is_trial(settings: Settings, partition: str) -> bool:
    """Return True if the runs on a partition are trials of `study.tune`."""
    return "validation" in settings.partitions[partition].settings


def study_of(settings: Settings, partition: str, method: str | None = None) -> Study:
    """Return the study as a run has it: a trial's rounds and seed are those of `study.tune`.

    Args:
        partition, method: the run's labels; without a method, what the partition's runs share.
    """
    study = replace(settings.study, **settings.protocols.get(partition, NO_PROTOCOL).study)
    rounds = settings.methods[method].rounds if method is not None else None
    if rounds is not None:
        study = replace(study, rounds=rounds)
    if settings.tuning is None or not is_trial(settings, partition):
        return study
    tuning = settings.tuning
    changes = {"rounds": tuning.rounds or study.rounds, "seeds": (tuning.seed,)}
    return replace(study, **changes, global_test=False)


def method_of(settings: Settings, partition: str, method: str) -> Method:
    """Return a method with the training options that it has on a partition."""
    found, protocol = settings.methods[method], settings.protocols.get(partition, NO_PROTOCOL)
    if not protocol.training:
        return found
    plugin, shared = find(found.plugin), settings.study.training
    return replace(found, training=plugin.training(shared, protocol.training, found.own_training))


def methods_of(settings: Settings, labels: Iterable[str]) -> list[Method]:
    """List methods with the training options of each of the study's partitions."""
    partitions = settings.select.partitions
    return [method_of(settings, partition, label) for label in labels for partition in partitions]
