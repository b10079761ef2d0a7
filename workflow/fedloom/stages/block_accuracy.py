"""Measure how well the frozen class token tells classes apart at every block."""

from fedloom.common.device import prepare_torch
from fedloom.common.scratch import nearest
from fedloom.data.store import ImageStore
from fedloom.report import block_accuracy
from fedloom.study import paths
from fedloom.study.jobs import BlockAccuracyJob


def run(job: BlockAccuracyJob, threads: int) -> None:
    """Write the accuracy by block as Parquet."""
    store, facts = nearest(paths.at(paths.STORE, dataset=job.dataset), whole=False)
    labels = {"dataset": job.dataset, "backbone": job.backbone}
    features, _ = nearest(paths.at(paths.CACHE, cache="features", **labels))
    prepare_torch(threads)
    block_accuracy.write(
        ImageStore(store, facts), features, paths.at(paths.BLOCK_ACCURACY, **labels)
    )
