"""Shrink the keys of `study`: rounds, seeds, training, trials."""

from fedloom.common.json_types import JsonDict
from fedloom.config.shrink.grids import Axes, ends
from fedloom.config.shrink.scale import Scale, limit_report
from fedloom.config.study import Study

# the keys that are taken over as they are
KEPT_KEYS = (
    "name",
    "fixed_seeds",
    "global_test",
    "confusion",
    "client_images",
    "stacked",
    "gradient_checkpointing",
    "compile",
)


def shrink_study_keys(study: Study, scale: Scale) -> JsonDict:
    """Return the shrunk keys of `study`."""
    given = study.model_dump(mode="json", exclude_unset=True)
    shrunk = {key: given[key] for key in KEPT_KEYS if key in given}
    if scale.real and "precision" in given:
        shrunk["precision"] = given["precision"]

    shrunk |= {
        "remark": scale.remark,
        "rounds": scale.rounds,
        "rounds_per_job": scale.rounds,
        "evaluate_every": 1,
        "clients_per_round": study.clients_per_round,
        "seeds": _first_seeds(study, scale.seeds),
        "report": limit_report(study.report.model_dump(exclude_none=True), scale),
        "training": study.training.given | _limits(study.training.given, scale),
    }
    tune = shrink_tune(study, scale)
    if tune is not None:
        shrunk["tune"] = tune
    return shrunk


def _limits(training: JsonDict, scale: Scale) -> JsonDict:
    """Return the training options that every method of a shrunk study has."""
    limits = {}
    for key, most in scale.training.items():
        # local steps would replace the epochs
        if key != "local_steps" or scale.real or training.get(key) is not None:
            limits[key] = min(training.get(key) or most, most)
    return limits


def shrink_tune(study: Study, scale: Scale) -> JsonDict | None:
    """Return the keys of `tune` with two trials of one round, at the ends of an axis.

    Return None if the shrunk study has no trials.
    """
    # at the real size, trials would only repeat the one step
    if study.tune is None or scale.real:
        return None

    tune = study.tune.model_dump(mode="json", exclude_unset=True)
    values = Axes()
    trials = 1
    for axis, choices in tune["values"].items():
        values[axis] = choices[:1]
        if trials == 1:
            values[axis] = ends({axis: choices})[axis]
            trials = len(values[axis])

    shrunk = tune | {"trials": trials, "rounds": 1, "values": values}
    if "per_method" in tune:
        shrunk["per_method"] = {label: ends(axes) for label, axes in tune["per_method"].items()}
    return shrunk


def _first_seeds(study: Study, count: int) -> list[int]:
    """Return the first seeds of a study; if it has fewer, larger numbers are added."""
    seeds = study.seeds[:count]
    while len(seeds) < count:
        following = max(study.seeds + seeds) + 1
        # the trials have a seed of their own
        if study.tune is not None and study.tune.seed == following:
            following += 1
        seeds = [*seeds, following]
    return seeds
