"""Resolve a run's protocol: the study's values, which its partition and its method override.

The protocol determines the rounds after which a job ends, after which clients are evaluated, and
which tables report.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import CONFIG, KeyPath
from fedloom.config.partitions import participants
from fedloom.config.settings import Method, ReportedRounds, Settings
from fedloom.config.study import Study
from fedloom.hooks.manifest import find_method
from fedloom.hooks.wrapper_rules import why_unseen_classes_lack_offsets

STUDY_KEY = CONFIG / "study"
# the keys of a partition by which clients are tested on classes that no client trained on
UNSEEN = {"novel_classes", "transfer_to"}


def is_trial(settings: Settings, partition: str) -> bool:
    """Return True if the runs on a partition are trials of `study.tune`."""
    return "validation" in settings.partitions[partition].settings


def study_for(settings: Settings, partition: str, method: str | None = None) -> Study:
    """Return the study with the values that its partition and its method override for a run.

    A trial has the rounds and the seed of `study.tune`. Without a method, only the values of the
    partition are applied.
    """
    study = settings.protocols[partition].apply_to(settings.study)
    if method is not None and settings.methods[method].rounds is not None:
        study = study.model_copy(update={"rounds": settings.methods[method].rounds})
    if study.tune is None or not is_trial(settings, partition):
        return study
    changes = {"rounds": study.tune.rounds or study.rounds, "seeds": [study.tune.seed]}
    return study.model_copy(update=changes | {"global_test": False})


def method_for(settings: Settings, partition: str, method: str) -> Method:
    """Return a method with the training options that it has on a partition."""
    found = settings.methods[method]
    given = settings.protocols[partition].training.given
    if not given:
        return found
    training = find_method(found.plugin).merge_training(
        settings.study.training.given, given, found.own_training
    )
    return replace(found, training=training)


def job_ends(study: Study) -> list[int]:
    """List the rounds at which a job ends: multiples of rounds_per_job, and the last round."""
    return [*range(study.rounds_per_job, study.rounds, study.rounds_per_job), study.rounds]


def _wanted_rounds(study: Study) -> list[int]:
    """List the rounds that study.evaluate_every asks for, and the last."""
    return [*range(study.evaluate_every, study.rounds, study.evaluate_every), study.rounds]


def evaluated_rounds(study: Study) -> list[int]:
    """List the rounds after which clients are evaluated.

    The last round of a job is always one of them, even if a later job follows. Otherwise, a study
    with more rounds would ask earlier jobs for other evaluations, and run them again.
    """
    return sorted({*_wanted_rounds(study), *job_ends(study)})


def reported_rounds(study: Study, where: KeyPath = STUDY_KEY) -> ReportedRounds:
    """Return the evaluated rounds that tables average.

    Args:
        study: the study with the values of a run (see `study_for`).
        where: the key path of the values, for an error.

    Raises:
        InvalidKeyError: tables report more evaluations than there are.
    """
    evaluated = _wanted_rounds(study)
    rounds = []
    for key in ("last_evaluations", "worst_of_evaluations"):
        count = getattr(study.report, key) or 0
        if count > len(evaluated):
            raise (where / "report" / key).error(
                f"must be at most {len(evaluated)}, the number of evaluated rounds (one in "
                f"{study.evaluate_every} of {study.rounds}, study.evaluate_every), got {count}"
            )
        # the last `count` of them; none if the count is 0
        rounds.append(tuple(evaluated[len(evaluated) - count :]))
    return ReportedRounds(*rounds)


def sampled_rounds(study: Study) -> list[int]:
    """List the evaluated rounds in which only a sample of the clients is evaluated."""
    if study.evaluate_clients is None:
        return []
    shown = reported_rounds(study)
    return sorted({*evaluated_rounds(study)} - {*shown.rounds, *shown.worst_of})


def check_parts(settings: Settings, labels: Iterable[str]) -> None:
    """Raise an InvalidKeyError if a method cannot be trained or tested as the study requires.

    A partition may test clients on classes that no client trains on. The study may divide the
    batches or the cohorts of a method (`training.micro_batch`, `study.stacked`).
    """
    for label, partition in product(labels, settings.select.partitions):
        method = method_for(settings, partition, label)
        plugin = find_method(method.plugin)
        where = CONFIG / "methods" / method.label
        for key in UNSEEN & settings.partitions[partition].settings.keys():
            reasons = [plugin.why_unseen_classes_unsupported(method.options)]
            for wrapper in method.wrappers:
                own = find_method(wrapper.plugin).with_defaults(wrapper.options)
                reasons.append(why_unseen_classes_lack_offsets(own))
            for reason in filter(None, reasons):
                raise where.error(
                    f"partitions.{partition}.{key} tests clients on classes that none trains on, "
                    f"but {reason}; run one without the other"
                )
        size = method.training["micro_batch"]
        stacked = settings.study.stacked
        reason = plugin.refused_parts(method.options, size, stacked)
        if reason is not None:
            raise where.error(reason)


def participating(settings: Settings, label: str) -> int | None:
    """Return how many clients of the labelled partition train; None if its keys do not say."""
    return participants(settings.partitions[label].settings, CONFIG / "partitions" / label)


def check_runs(settings: Settings) -> None:
    """Raise an InvalidKeyError if a run samples too many clients, or has too few evaluations."""
    for label in settings.select.partitions:
        own = settings.protocols[label].model_fields_set - {"training"}
        protocol = CONFIG / "partitions" / label / "protocol"
        where = protocol if own else STUDY_KEY
        found = study_for(settings, label)
        training = participating(settings, label)
        if training is not None and found.clients_per_round > training:
            place = protocol if "clients_per_round" in own else STUDY_KEY
            raise (place / "clients_per_round").error(
                f"must be at most {training}, the participating clients of partitions.{label}, got "
                f"{found.clients_per_round}"
            )
        reported_rounds(found, where)
        for method in settings.select.methods:
            if settings.methods[method].rounds is not None:
                found = study_for(settings, label, method)
                reported_rounds(found, KeyPath(CONFIG / "methods" / method, where.keys))


def fit_inherited_keys(settings: Settings, own: JsonDict) -> Study:
    """Return the study, whose inherited keys are lowered to fit the keys that it sets itself.

    The latter are `own`. So a file with `study: {rounds: 4}` is a whole study, and no error is
    about a key that the author of the file did not write.
    """
    study = settings.study
    given = own.get("study", {})
    select = settings.select
    methods = [settings.methods[label] for label in select.methods]
    changes: dict[str, object] = {}

    # sample at most as many clients as participate
    if "clients_per_round" not in given:
        counts = [participating(settings, label) for label in select.partitions]
        stated = [count for count in counts if count is not None]
        changes["clients_per_round"] = min([study.clients_per_round, *stated])

    # report at most as many evaluations as the run with the fewest rounds has
    partition_studies = [study_for(settings, label) for label in select.partitions]
    evaluations = min(
        len(_wanted_rounds(each.model_copy(update={"rounds": method.rounds or each.rounds})))
        for each, method in product(partition_studies, methods)
    )
    counts = study.report.model_dump(exclude_none=True)
    report = given.get("report", {})
    fitting = {key: min(n, evaluations) for key, n in counts.items() if key not in report}
    changes["report"] = study.report.model_copy(update=fitting)

    # give trials at most as many rounds, and a seed of their own
    tune = study.tune
    given_tune = given.get("tune", {})
    if tune is not None and not given_tune and any(method.member for method in methods):
        # the members of a grid get their options from the grid, not from trials
        changes["tune"] = None
    elif tune is not None:
        seed = tune.seed
        if seed in study.seeds:
            seed = max(study.seeds) + 1
        fitting = {"rounds": tune.rounds and min(tune.rounds, study.rounds), "seed": seed}
        fitting = {key: n for key, n in fitting.items() if key not in given_tune}
        changes["tune"] = tune.model_copy(update=fitting)
    return study.model_copy(update=changes)


def notes_on(before: Study, after: Study) -> Iterator[str]:
    """Yield a line for every key of a study whose value was changed to fit the study's own keys."""
    old = before.model_dump()
    new = after.model_dump()
    for values in (old, new):
        for section in ("report", "tune"):
            inner = values.pop(section) or {}
            values |= {f"{section}.{key}": value for key, value in inner.items()}
    for key, value in old.items():
        if key not in new:
            yield f"study.{key} does not apply to this study"
        elif new[key] != value:
            yield f"study.{key} is {new[key]} in place of {value}, to fit the study's own keys"
