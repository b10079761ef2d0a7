"""The facts of a study, at the top of its report."""

from fedloom.config.protocols import study_of
from fedloom.config.settings import Settings


def overview(settings: Settings) -> dict[str, str | list[str]]:
    """Return the facts of a study by heading: a line, or several."""
    select = settings.select
    study = settings.study
    values = study.fixed_seeds.model_dump(exclude={"partition"}, exclude_none=True)
    fixed = ", ".join(f"{name} {seed}" for name, seed in values.items())

    texts: dict[str, str | list[str]] = {
        "Paper": settings.citation or "",
        "Shows": ", ".join(study.shows),
        "Data sets": ", ".join(select.datasets),
        "On the data sets": [
            f"{name}: {note}" for name in select.datasets for note in settings.datasets[name].notes
        ],
        "Partitions": ", ".join(select.partitions),
        "Backbones": ", ".join(select.backbones),
        "On the backbones": [
            f"{name}: {note}"
            for name in select.backbones
            for note in settings.backbones[name].notes
        ],
        "Methods": ", ".join(settings.methods[label].title for label in select.methods),
        "Rounds": _rounds(settings),
        "Seeds": ", ".join(map(str, study.seeds)) + (f" (fixed: {fixed})" if fixed else ""),
        "Different from the paper": list(study.deviations.values()),
        "Left open by the paper": list(study.open_questions.values()),
    }
    return {heading: text for heading, text in texts.items() if text}


def _rounds(settings: Settings) -> str | list[str]:
    """Say how many rounds and clients runs have, by partition and method where they differ."""
    named: dict[str, list[str]] = {}
    for partition in settings.select.partitions:
        study = study_of(settings, partition)
        methods = [settings.methods[label] for label in settings.select.methods]
        own = [f"; {m.title} {m.rounds}" for m in methods if m.rounds not in (None, study.rounds)]
        text = f"{study.rounds}, with {study.clients_per_round} clients each" + "".join(own)
        named.setdefault(text, []).append(partition)
    lines = [f"{', '.join(partitions)}: {text}" for text, partitions in named.items()]
    return lines if len(named) > 1 else next(iter(named))
