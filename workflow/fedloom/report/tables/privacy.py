"""Write a table's line on differential privacy: the budget, and who can subtract the noise."""

import pandas as pd

from fedloom.report.metrics import frame
from fedloom.study.plot_inputs import ShownRun

SUBTRACTED = "noise that whoever knows the seed can subtract"


def footnote(runs: list[ShownRun]) -> str:
    """Return a line of the methods that add noise; "" if none does.

    They are those whose wrappers report `secret_noise`, and `epsilon` if they count a budget, of
    which the largest of a method's runs is shown.
    """
    last: dict[str, list[pd.Series]] = {}
    for run in runs:
        rounds = frame(run.rounds)
        if "secret_noise" in rounds:
            last.setdefault(run.title, []).append(rounds.iloc[-1])
    lines = [f"{title}: {_in_words(pd.DataFrame(rows))}" for title, rows in last.items()]
    return f" Differential privacy: {'; '.join(lines)}." if lines else ""


def _in_words(last: pd.DataFrame) -> str:
    """Say what the runs' last rounds have."""
    noise = "secret noise" if last["secret_noise"].all() else SUBTRACTED
    if "epsilon" not in last:
        return noise
    return f"epsilon {last['epsilon'].max():.3g} after {last['round'].max():.0f} rounds, {noise}"
