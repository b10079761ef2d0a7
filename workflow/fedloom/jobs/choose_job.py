"""Choose a method's options: those of the trial whose clients are best on what they held back."""

import json
import logging

import pyarrow as pa

from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_table
from fedloom.config import grids
from fedloom.config.settings import Reported
from fedloom.planning import choices, paths
from fedloom.planning.job_specs import ChooseJob
from fedloom.report.metrics import accuracies, evaluation

log = logging.getLogger(__name__)


def run(job: ChooseJob, threads: int) -> None:
    """Write a row per trial: its label, its options as JSON, its accuracy; and the best one's row.

    The accuracy is the mean over participating clients after the last round, in percent. Of equal
    ones the first trial is chosen; a trial that diverged has none. A line of the log names a chosen
    number that is the lowest or highest of those tried.
    """
    # each trial's mean accuracy after the last round; none if it diverged before
    trials, files = zip(*choices.trial_evaluations(job), strict=True)
    of_trials = [accuracies(evaluation(file), Reported((job.last,))) for file in files]
    means = [each.get("participating_mean") for each in of_trials]

    finished = [mean for mean in means if mean is not None]
    if not finished:
        raise FedLoomError(
            f"{job.method}: all of its {len(trials)} trials diverged; give it smaller learning "
            "rates to try (study.tune.values), or set training.clip"
        )

    # a table of all trials, and a row of the best
    best = means.index(max(finished))
    options = [trial.options for trial in trials]
    columns = [
        pa.array([trial.label for trial in trials]),
        pa.array(map(json.dumps, options)),
        pa.array(means, pa.float64()),
        pa.array([number == best for number in range(len(trials))]),
    ]
    table = pa.table(columns, ["trial", "options", "accuracy", "chosen"])
    write_table(paths.path_for(paths.TRIALS, **vars(job)), table)
    write_table(paths.path_for(paths.CHOICE, **vars(job)), table.select([0, 1]).slice(best, 1))

    # the best value may lie beyond those that were tried
    for name, end in choices.at_edge(options[best], options).items():
        where = "/".join([job.dataset, job.partition, job.backbone, job.method])
        line = "%s: chose %s %s, the %s that was tried; give study.tune values beyond it"
        log.info(line, where, name, grids.text(options[best][name]), end)
