"""Choose a method's options: those of the trial whose clients are best on what they held back."""

import json
import logging

import pyarrow as pa

from fedloom.common.errors import FedLoomError
from fedloom.common.io import write_table
from fedloom.config import grids
from fedloom.config.rounds import Reported
from fedloom.report.metrics import accuracies, evaluation
from fedloom.study import paths, selected
from fedloom.study.jobs import ChooseJob

log = logging.getLogger(__name__)


def run(job: ChooseJob, threads: int) -> None:
    """Write a row per trial: its label, its options as JSON, its accuracy; and the best one's row.

    The accuracy is the mean over participating clients after the last round, in percent. Of equal
    ones the first trial is chosen; a trial that diverged has none. A line of the log names a chosen
    number that is the lowest or highest of those tried.
    """
    trials = selected.evaluations(job)
    of_trials = [accuracies(evaluation(file), Reported((job.last,))) for _, file in trials]
    means = [each.get("participating_mean") for each in of_trials]
    if all(mean is None for mean in means):
        raise FedLoomError(
            f"{job.method}: all of its {len(trials)} trials diverged; give it smaller learning "
            "rates to try (study.tune.values), or set training.clip"
        )
    options = [json.dumps(trial.options) for trial, _ in trials]
    labels = [trial.label for trial, _ in trials]
    best = means.index(max(mean for mean in means if mean is not None))
    where = {name: getattr(job, name) for name in ("dataset", "partition", "backbone", "method")}
    rows = {"trial": labels, "options": options, "accuracy": pa.array(means, pa.float64())}
    rows["chosen"] = [number == best for number in range(len(trials))]
    write_table(paths.at(paths.TRIALS, **where), pa.table(rows))
    chosen = {"trial": [labels[best]], "options": [options[best]]}
    write_table(paths.at(paths.CHOICE, **where), pa.table(chosen))
    all_options = [trial.options for trial, _ in trials]
    for name, end in selected.at_edge(all_options[best], all_options).items():
        log.info(
            "%s: chose %s %s, the %s that was tried, so that values beyond it may do better; give "
            "study.tune some",
            "/".join(where.values()),
            name,
            grids.text(all_options[best][name]),
            end,
        )
