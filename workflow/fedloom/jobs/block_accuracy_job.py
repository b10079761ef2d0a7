"""Measure how well the frozen class token tells classes apart at every block."""

from fedloom.common.receipts import check_receipt
from fedloom.data.store import ImageStore
from fedloom.machine.device import prepare_cpu
from fedloom.planning import paths
from fedloom.planning.job_specs import BlockAccuracyJob
from fedloom.report import block_accuracy


def run_job(job: BlockAccuracyJob, threads: int) -> None:
    """Write a table with a row per block: the accuracies on the test images."""
    files = paths.data_inputs("block_accuracy", **vars(job))
    check_receipt(files["features"])

    prepare_cpu(threads)
    out = paths.path_for(paths.BLOCK_ACCURACY, **vars(job))
    block_accuracy.write_accuracies(ImageStore(files["store"]), files["features"], out)
