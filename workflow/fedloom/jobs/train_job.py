"""Train the rounds of a job; after an earlier attempt, only the rounds that are left."""

import signal
from collections.abc import Collection
from dataclasses import asdict, replace
from functools import partial

from fedloom.backbones import backbone
from fedloom.common.receipts import check_receipt, digest, receipt_path, sha256, write_receipt
from fedloom.federated import training_job
from fedloom.federated.build_task import build_task
from fedloom.machine.device import prepare_torch
from fedloom.planning import choices, paths, provenance
from fedloom.planning.job_specs import TrainJob


def run_job(
    job: TrainJob,
    threads: int,
    stopping: Collection[signal.Signals] = training_job.STOPPING,
) -> None:
    """Write the state after the last round, and the tables of evaluations, rounds and clients.

    A signal of `stopping` ends the job after the round that it is in; the next attempt goes on.
    """
    job = replace(job, spec=choices.with_choice(job.spec))
    run = job.spec.run

    # the files that it writes
    end = paths.four_digits(job.last)
    state = paths.path_for(paths.STATE, run, end=end)
    tables = {name: paths.path_for(file, run, end=end) for name, file in paths.JOB_TABLES.items()}
    outputs = training_job.Outputs(state, state.with_name(paths.CHECKPOINT), **tables)

    # the files that it reads: data, and from the second job on the state of the job before
    inputs = paths.run_inputs(run, job.spec.method.needs)
    receipts = [receipt_path(file) for file in inputs.values()]
    start = None
    if job.after:
        start = paths.path_for(paths.STATE, run, end=paths.four_digits(job.after))
        receipts.append(receipt_path(start))

    with training_job.exclusive_run_folder(state.parent):
        device = prepare_torch(threads, job.spec.backbone.precision)
        task, hooks = build_task(job.spec, inputs, device)

        # all rounds of a run must be made from the same sources, weights, settings and data
        loaded = partial(backbone.weights_digest, task.backbone)
        weights = provenance.digest_of_weights(run.path, job.spec.backbone, loaded)
        made_by = {
            "sources": job.sources,
            "weights": weights,
            "settings": provenance.digest_of_settings(job.spec),
            "data": digest([sha256(receipt_path(file)) for file in inputs.values()]),
        }
        if start is not None:
            provenance.check_same(run, check_receipt(start), made_by)

        # train, from a checkpoint with the same fingerprint if there is one
        fingerprint = training_job.job_fingerprint(job, receipts, device)
        training_job.train_rounds(task, hooks, job, start, outputs, fingerprint, stopping)
        # with the settings, the state can be used without the study (fedloom.models.from_run)
        write_receipt(state, **made_by, spec=asdict(job.spec))
