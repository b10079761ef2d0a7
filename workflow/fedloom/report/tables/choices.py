"""What a table says of options that were chosen by trials (study.tune)."""

from itertools import groupby

from fedloom.config.grids import TRAINING, text
from fedloom.study.jobs import Shown, Tuned
from fedloom.study.plot_inputs import choices
from fedloom.study.selected import tried


def footnote(shown: Shown, tuned: Tuned) -> str:
    """Return how options were chosen, and which, by scenario where the table has several."""
    rounds = "1 round" if tuned.rounds == (1,) else f"{' or '.join(map(str, tuned.rounds))} rounds"
    how = (
        f"Options chosen from {tuned.trials} trials of every method, {rounds} of one seed "
        f"({tuned.seed}) each, by the accuracy of participating clients on {tuned.share:.4g} of "
        "their training images"
    )
    parts = []
    for scenario, rows in groupby(choices(shown, tuned), lambda choice: choice.scenario):
        values = "; ".join(f"{row.title}: {_in_words(tried(row.trials)[0])}" for row in rows)
        parts.append(f"{scenario}: {values}" if len(shown.scenarios) > 1 else values)
    return f"{how}. Chosen: {'. '.join(parts)}."


def _in_words(options: dict) -> str:
    """Write options as "lr 0.3, prompts 8"."""
    return ", ".join(f"{name.removeprefix(TRAINING)} {text(v)}" for name, v in options.items())
