"""Divide a dataset's images over clients."""

from fedloom.common.errors import FedLoomError
from fedloom.common.files import write_table
from fedloom.common.receipts import read_receipt, write_receipt
from fedloom.config.partitions import novel_numbers
from fedloom.data.partition import divide_dataset
from fedloom.data.store import ImageStore
from fedloom.planning import paths
from fedloom.planning.job_specs import PartitionJob


def run_job(job: PartitionJob, threads: int) -> None:
    """Write a table with a row per image: the client that has it (see fedloom.data.partition)."""
    label = job.partition.label
    seed = job.seed
    store = paths.path_for(paths.STORE, dataset=job.dataset)
    images = ImageStore(store)
    out = paths.path_for(paths.PARTITION, dataset=job.dataset, partition=label, seed=seed)
    spec = {"scheme": job.partition.scheme, **job.partition.settings}

    # the config may name novel classes, whose numbers only the store knows
    try:
        classes = read_receipt(store)["classes"]
        if "novel_classes" in spec:
            spec["novel_classes"] = novel_numbers(spec["novel_classes"], classes)
        table = divide_dataset(images.labels, images.test, images.domains, spec, seed, classes)
        write_table(out, table)
    except FedLoomError as error:
        raise FedLoomError(f"partition '{label}': {error}") from None
    write_receipt(out)
