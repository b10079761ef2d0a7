"""Write a dataset's images into an Arrow store."""

from fedloom.data.sources import build_store
from fedloom.planning import paths
from fedloom.planning.job_specs import DatasetJob


def run_job(job: DatasetJob, threads: int) -> None:
    """Write the images that the dataset's source reads, with their labels, and a receipt."""
    dataset = job.dataset
    build_store(
        dataset.source, dataset.settings, paths.path_for(paths.STORE, dataset=dataset.label)
    )
