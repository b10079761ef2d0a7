"""Train a job's rounds, or what is left of them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from fedloom.backbones import base
from fedloom.common.device import prepare_torch
from fedloom.common.receipts import check_receipt, receipt_of, write_receipt
from fedloom.federated import training_job
from fedloom.federated.build_task import prepare
from fedloom.study import paths, provenance, selected
from fedloom.study.jobs import RunSpec, TrainJob


def run(job: TrainJob, threads: int) -> None:
    """Write the state after the last round, the evaluations and the rows of the rounds."""
    job = replace(job, spec=selected.with_choice(job.spec))
    run, end = job.spec.run, paths.end(job.last)
    state = paths.at(paths.STATE, run, end=end)
    outputs = training_job.Outputs(
        state=state,
        evaluation=paths.at(paths.JOB_EVALUATION, run, end=end),
        rounds=paths.at(paths.JOB_ROUNDS, run, end=end),
        confusion=paths.at(paths.JOB_CONFUSION, run, end=end),
        clients=paths.at(paths.JOB_CLIENTS, run, end=end),
        checkpoint=state.with_name(paths.CHECKPOINT),
    )
    start = paths.at(paths.STATE, run, end=paths.end(job.first)) if job.first else None
    with training_job.exclusive(state.parent):
        before = None if start is None else check_receipt(start)
        task, hooks = prepare(job.spec, prepare_torch(threads, job.spec.backbone.precision))
        digest = partial(base.weights_digest, task.backbone)
        made_by = provenance.used("train", job.spec, job.sources, digest)
        if before is not None:
            names = f"the rounds up to {job.first}", f"those up to {job.last}"
            provenance.check_same(run, dict(zip(names, (before, made_by), strict=True)))
        files = [*inputs(job.spec), *([start] if start else [])]
        receipts = [receipt_of(file) for file in files]
        fingerprint = training_job.fingerprint_of(job, receipts, task.data.device)
        known = None if before is None else before["digest"]
        written = training_job.train(task, hooks, job, start, outputs, fingerprint, known)
        # without a lock, another job may have replaced the state by its own: the digest tells
        write_receipt(state, digest=written, fingerprint=fingerprint, **made_by)


def inputs(spec: RunSpec) -> list[Path]:
    """Return the files with receipts that the run reads."""
    run = spec.run
    caches = [name for name in ("features", "patches") if name in spec.method.needs]
    return [
        paths.at(paths.STORE, run),
        paths.at(paths.PARTITION, run),
        *(paths.at(paths.CACHE, run, cache=name) for name in caches),
        *([paths.at(paths.PROTOTYPES, run)] if "prototypes" in spec.method.needs else []),
    ]
