"""Choose a method's options: those of the trial that is most accurate on held-back images."""

import json
import logging

import pyarrow as pa

from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_table
from fedloom.config import grids
from fedloom.config.settings import ReportedRounds
from fedloom.planning import choices, paths
from fedloom.planning.job_specs import ChooseJob
from fedloom.report.metrics import accuracies, evaluation

log = logging.getLogger(__name__)


def run_job(job: ChooseJob, threads: int) -> None:
    """Write a table of all trials, and a table with the chosen trial alone.

    A row has the trial's label and its options as JSON. The table of all trials also has their
    accuracies in percent, each the mean over participating clients after the last round. A trial
    that diverged has no accuracy. If several trials are the best, the first of them is chosen. If a
    chosen number is the lowest or highest that was tried, the log says so.

    Raises:
        FedLoomError: all trials diverged.
    """
    # each trial's mean accuracy after the last round; None if the trial diverged before
    trials, files = zip(*choices.trial_evaluations(job), strict=True)
    trial_accuracies = [accuracies(evaluation(file), ReportedRounds((job.last,))) for file in files]
    means = [each.get("participating_mean") for each in trial_accuracies]

    finished = [mean for mean in means if mean is not None]
    if not finished:
        raise FedLoomError(
            f"{job.method}: all of its {len(trials)} trials diverged; give it smaller learning "
            "rates to try (study.tune.values), or set training.clip"
        )

    # write the table of all trials, and the row of the best one
    best = means.index(max(finished))
    options = [trial.options for trial in trials]
    columns = [
        pa.array([trial.label for trial in trials]),
        pa.array(map(json.dumps, options)),
        pa.array(means, pa.float64()),
        pa.array([position == best for position in range(len(trials))]),
    ]
    table = pa.table(columns, ["trial", "options", "accuracy", "chosen"])
    write_table(paths.path_for(paths.TRIALS, **vars(job)), table)
    write_table(paths.path_for(paths.CHOICE, **vars(job)), table.select([0, 1]).slice(best, 1))

    # a still better value may lie beyond those that were tried
    for name, end in choices.at_edge(options[best], options).items():
        where = "/".join([job.dataset, job.partition, job.backbone, job.method])
        line = "%s: chose %s %s, the %s that was tried; give study.tune values beyond it"
        log.info(line, where, name, grids.value_text(options[best][name]), end)
