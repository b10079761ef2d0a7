"""Compute an artefact of a finished run: a table of its method, or one of the runtime's own."""

from dataclasses import asdict

import pyarrow as pa

from fedloom.backbones.backbone import weights_digest
from fedloom.common import tensor_files
from fedloom.common.files import write_table
from fedloom.common.receipts import check_receipt
from fedloom.common.run_tables import ANSWERS_SCHEMA
from fedloom.federated import rows
from fedloom.federated.build_task import build_task, with_datasets
from fedloom.federated.evaluate import compute_artefact
from fedloom.federated.evaluate_test_sets import evaluate_test_sets
from fedloom.federated.example_answers import example_answers
from fedloom.federated.state import State
from fedloom.hooks.manifest import ANSWERS, TEST_SETS
from fedloom.machine.device import prepare_torch
from fedloom.planning import choices, paths, provenance
from fedloom.planning.job_specs import ArtefactJob


def run_job(job: ArtefactJob, threads: int) -> None:
    """Write the table of an artefact, computed by the run's hooks from its last state."""
    spec = choices.with_choice(job.spec)
    run = spec.run
    state = paths.path_for(paths.STATE, run, end=paths.four_digits(job.last))
    check_receipt(state)

    # the run's task, with the weights that it was trained with
    inputs = paths.run_inputs(run, spec.method.needs)
    device = prepare_torch(threads, spec.backbone.precision)
    task, hooks = build_task(spec, inputs, device)
    backbone = task.backbone
    provenance.digest_of_weights(run.path, spec.backbone, lambda: weights_digest(backbone))

    # the run's state after the last round
    tree, metadata = tensor_files.load(state)
    kept = State.from_tree(tree, task.data.device)
    task = task.at(metadata["round"])

    if job.artefact == TEST_SETS:
        names = job.transfer_to
        needs = spec.method.needs
        files = {name: paths.other_inputs(name, run, needs) for name in names}
        task = with_datasets(task, files, task.data.device)
        answers = [row.columns() for row in evaluate_test_sets(task, hooks, kept)]
        table = pa.Table.from_pylist(answers, schema=rows.TEST_SETS_SCHEMA)
    elif job.artefact == ANSWERS:
        answered = [asdict(row) for row in example_answers(task, hooks, kept)]
        table = pa.Table.from_pylist(answered, schema=ANSWERS_SCHEMA)
    else:
        table = pa.table(compute_artefact(task, hooks, kept, job.artefact))

    write_table(paths.path_for(paths.ARTEFACT, run, artefact=job.artefact), table)
