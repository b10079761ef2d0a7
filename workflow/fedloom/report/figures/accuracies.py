"""Read one accuracy of a run by its name, for kinds of figures that draw any of them."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.report import metrics
from fedloom.study.plot_inputs import ShownRun

AXES = {
    "participating_mean": "Mean accuracy (%)",
    "participating_worst": "Worst client's accuracy (%)",
    "held_out_mean": "Held-out mean accuracy (%)",
    "held_out_worst": "Held-out worst accuracy (%)",
    "global": "Global accuracy (%)",
}


def accuracy(run: ShownRun, metric: str, personalized: bool = True) -> float:
    """Return an accuracy of a run in percent at its reported rounds, see `metrics.accuracies`.

    Raises:
        FedLoomError: the run has none, as `held_out_mean` without clients held out.
    """
    numbers = metrics.accuracies(metrics.evaluation(run.evaluation, personalized), run.reported)
    if metric not in numbers:
        known = ", ".join(numbers)
        raise FedLoomError(f"{run.evaluation}: no {metric} there; it has {known}")
    return numbers[metric]


def over_seeds(
    series: Sequence[ShownRun],
    key: Callable[[ShownRun], Hashable],
    measure: Callable[[ShownRun], float],
) -> dict[Hashable, tuple[float, float]]:
    """Return mean and sample standard deviation (NaN of one seed) of a number, by the runs' key."""
    values: dict[Hashable, list[float]] = {}
    for run in series:
        values.setdefault(key(run), []).append(measure(run))
    return {
        name: (float(np.mean(v)), float(np.std(v, ddof=1)) if len(v) > 1 else np.nan)
        for name, v in values.items()
    }
