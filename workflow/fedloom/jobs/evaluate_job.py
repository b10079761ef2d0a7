"""Join the tables of a run's training jobs into one table each."""

import logging

from fedloom.planning import paths, provenance
from fedloom.planning.job_specs import EvaluateJob
from fedloom.report import metrics

log = logging.getLogger(__name__)


def run_job(job: EvaluateJob, threads: int) -> None:
    """Write evaluation.parquet, rounds.parquet and clients.parquet of a run.

    On request (`confusion`), also write confusion.parquet and calibration.parquet.

    If `checks_loss` is set and the training loss after the last round is not below that of
    guessing, the log says so.
    """
    # join each table of the run from the tables of its jobs
    ends = [paths.four_digits(end) for end in job.ends]
    made_by = provenance.facts_of_job(job.run, job.ends[-1])
    for name in paths.table_names(job.confusion):
        job_tables = [paths.path_for(paths.JOB_TABLES[name], job.run, end=end) for end in ends]
        run_table = paths.path_for(paths.RUN_TABLES[name], job.run)
        metrics.join(job_tables, run_table, job.run, made_by)

    # that a trial does not train is no news: trials find out which options train
    if not job.checks_loss:
        return

    rounds = metrics.frame(paths.path_for(paths.ROUNDS, job.run))
    if metrics.loss_not_below_guessing(rounds):
        line = (
            "%s: training loss %.2f after the last round, not below that of guessing (%.2f); take "
            "another training.lr, or set training.clip"
        )
        log.info(line, job.run.path, *rounds[["train_loss", "guessing_loss"]].iloc[-1])
