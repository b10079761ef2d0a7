"""The facts of a study, at the top of its report."""

from fedloom.config.protocols import study_of
from fedloom.config.settings import Settings


def overview(settings: Settings) -> dict[str, str | list[str]]:
    """Return the facts of a study by heading: a line, or several."""
    select, study = settings.select, settings.study
    titles = [settings.methods[label].title for label in select.methods]
    texts: dict[str, str | list[str]] = {
        "Paper": settings.citation or "",
        "Shows": ", ".join(study.shows),
        "Data sets": ", ".join(select.datasets),
        "On the data sets": [
            f"{label}: {note}"
            for label in select.datasets
            for note in settings.datasets[label].notes
        ],
        "Partitions": ", ".join(select.partitions),
        "Backbones": ", ".join(select.backbones),
        "Methods": ", ".join(titles),
        "Rounds": _rounds(settings),
        "Seeds": ", ".join(map(str, settings.study.seeds)) + _fixed(settings),
        "Different from the paper": list(study.deviations.values()),
        "Left open by the paper": list(study.open_questions.values()),
    }
    return {heading: text for heading, text in texts.items() if text}


def _rounds(settings: Settings) -> str | list[str]:
    """Say how many rounds and clients runs have, by partition and method where they differ."""
    named: dict[str, list[str]] = {}
    for partition in settings.select.partitions:
        study = study_of(settings, partition)
        own = [
            f"{settings.methods[label].title} {settings.methods[label].rounds}"
            for label in settings.select.methods
            if settings.methods[label].rounds not in (None, study.rounds)
        ]
        text = f"{study.rounds}, with {study.clients_per_round} clients each"
        named.setdefault("; ".join([text, *own]), []).append(partition)
    if len(named) == 1:
        return next(iter(named))
    return [f"{', '.join(partitions)}: {text}" for text, partitions in named.items()]


def _fixed(settings: Settings) -> str:
    """Name the parts of a run that have a separate seed."""
    values = settings.study.fixed_seeds.model_dump(exclude={"partition"})
    named = [f"{name} {seed}" for name, seed in values.items() if seed is not None]
    return f" (fixed: {', '.join(named)})" if named else ""
