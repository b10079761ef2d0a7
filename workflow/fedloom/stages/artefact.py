"""Compute a method's own table from a finished run, for figures and tables."""

from functools import partial

import pyarrow as pa

from fedloom.backbones import base
from fedloom.common import tensor_files
from fedloom.common.device import prepare_torch
from fedloom.common.io import write_table
from fedloom.common.receipts import check_receipt
from fedloom.federated.build_task import build_task
from fedloom.federated.evaluate import artefact
from fedloom.federated.state import State
from fedloom.study import paths, provenance, selected
from fedloom.study.jobs import ArtefactJob


def run(job: ArtefactJob, threads: int) -> None:
    """Write the artefact as Parquet."""
    spec = selected.with_choice(job.spec)
    run = spec.run
    state = paths.at(paths.STATE, run, end=paths.end(job.last))
    check_receipt(state)
    inputs = paths.run_inputs(run, spec.method.needs)
    task, hooks = build_task(spec, inputs, prepare_torch(threads, spec.backbone.precision))
    loaded = partial(base.weights_digest, task.backbone)
    provenance.digest_of_weights(run.path, spec.backbone, loaded)
    tree, facts = tensor_files.load(state)
    kept = State.of(tree, task.data.device)
    table = artefact(task.at(facts["round"]), hooks, kept, job.artefact)
    write_table(paths.at(paths.ARTEFACT, run, artefact=job.artefact), pa.table(table))
