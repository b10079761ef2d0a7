"""Fit the keys that a study inherits from config.yaml to the keys that it sets itself.

So a file with `study: {rounds: 4}` is a whole study, and no error names a key that nobody wrote
there.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from fedloom.config.partitions import held_out_count
from fedloom.config.protocols import study_of
from fedloom.config.rounds import wanted_rounds
from fedloom.config.settings import Settings
from fedloom.config.study import Study, Tune


def capped(settings: Settings, own: dict[str, Any]) -> Study:
    """Return the study, in which the keys that are not its `own` fit those that are."""
    study, given = settings.study, own.get("study", {})
    own_report, own_tune = given.get("report", {}), given.get("tune", {})
    changes: dict[str, Any] = {"tune": _capped_tune(settings, own_tune)}
    if "clients_per_round" not in given:
        changes["clients_per_round"] = min([study.clients_per_round, *_participating(settings)])
    evaluations, counts = _evaluations(settings), study.report.model_dump(exclude_none=True)
    fitting = {key: min(n, evaluations) for key, n in counts.items() if key not in own_report}
    return study.model_copy(update=changes | {"report": study.report.model_copy(update=fitting)})


def notes(before: Study, after: Study) -> Iterator[str]:
    """Yield a line for every key of a study whose value was capped."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    for section in ("report", "tune"):
        for values in (old, new):
            inner = values.pop(section) or {}
            values |= {f"{section}.{key}": value for key, value in inner.items()}
    for key, value in old.items():
        if key not in new:
            yield f"study.{key} does not apply to this study"
        elif new[key] != value:
            yield f"study.{key} is {new[key]} in place of {value}, to fit the study's own keys"


def _capped_tune(settings: Settings, own: dict[str, Any]) -> Tune | None:
    """Return how options are chosen, if they are: where all is inherited, not beside a grid's."""
    study, tune = settings.study, settings.study.tune
    methods = [settings.methods[label] for label in settings.select.methods]
    if tune is None or (not own and any(method.member for method in methods)):
        return None
    rounds = tune.rounds and min(tune.rounds, study.rounds)
    seed = max(study.seeds) + 1 if tune.seed in study.seeds else tune.seed
    fitting = {"rounds": rounds, "seed": seed}
    return tune.model_copy(update={key: n for key, n in fitting.items() if key not in own})


def _evaluations(settings: Settings) -> int:
    """Return how often clients are evaluated in the run that has the fewest rounds."""
    of_partitions = [study_of(settings, label) for label in settings.select.partitions]
    rounds = {settings.methods[label].rounds for label in settings.select.methods}
    return min(
        len(wanted_rounds(study.model_copy(update={"rounds": own or study.rounds})))
        for study, own in product(of_partitions, rounds)
    )


def _participating(settings: Settings) -> list[int]:
    """Return the participating clients of each selected partition that states its clients."""
    keys = [settings.partitions[label].settings for label in settings.select.partitions]
    return [k["clients"] - held_out_count(k["clients"], k) for k in keys if "clients" in k]


def applies(section: str, label: str, own: dict[str, Any]) -> bool:
    """Return True if the study selects or defines a table or figure itself.

    Of the others, it shows those that suit its runs.
    """
    return section in own.get("select", {}) or label in own.get(section, {})
