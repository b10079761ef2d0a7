"""Collect the facts of a study that stand at the top of its report."""

from collections.abc import Iterable, Mapping

from fedloom.config.narrowing import in_words
from fedloom.config.protocols import study_for
from fedloom.config.settings import BackboneSettings, Dataset, Settings


def overview(settings: Settings) -> dict[str, str | list[str]]:
    """Return the facts of a study by heading: a line, or several."""
    select = settings.select
    study = settings.study

    # the seeds of runs, and the fixed seeds that replace them for some purposes
    seeds = ", ".join(map(str, study.seeds))
    values = study.fixed_seeds.model_dump(exclude={"partition"}, exclude_none=True)
    if values:
        fixed = ", ".join(f"{name} {seed}" for name, seed in values.items())
        seeds += f" (fixed: {fixed})"

    texts: dict[str, str | list[str]] = {
        "Paper": settings.citation or "",
        "Shows": ", ".join(study.shows),
        "Narrowed to": in_words(settings.narrowing),
        "Data sets": ", ".join(select.datasets),
        "On the data sets": _notes(settings.datasets, select.datasets),
        "Partitions": ", ".join(select.partitions),
        "Backbones": ", ".join(select.backbones),
        "On the backbones": _notes(settings.backbones, select.backbones),
        "Methods": ", ".join(settings.methods[label].title for label in select.methods),
        "Rounds": _rounds(settings),
        "Seeds": seeds,
        "Different from the paper": list(study.deviations.values()),
        "Left open by the paper": list(study.open_questions.values()),
    }

    # a fact that a study does not have gets no heading
    return {heading: text for heading, text in texts.items() if text}


def _notes(entries: Mapping[str, Dataset | BackboneSettings], labels: Iterable[str]) -> list[str]:
    """Return the notes on datasets or backbones, each after the label of its entry."""
    lines = []
    for label in labels:
        lines += [f"{label}: {note}" for note in entries[label].notes]
    return lines


def _rounds(settings: Settings) -> str | list[str]:
    """Say how many rounds and clients runs have, by partition and method where they differ."""
    # maps a text to the partitions that it describes
    named: dict[str, list[str]] = {}
    methods = [settings.methods[label] for label in settings.select.methods]
    for partition in settings.select.partitions:
        study = study_for(settings, partition)
        text = f"{study.rounds}, with {study.clients_per_round} clients each"
        for method in methods:
            if method.rounds not in (None, study.rounds):
                text += f"; {method.title} {method.rounds}"
        named.setdefault(text, []).append(partition)

    # if one text describes all partitions, it needs no names
    if len(named) == 1:
        return next(iter(named))
    return [f"{', '.join(partitions)}: {text}" for text, partitions in named.items()]
