"""Draw a partition as bubbles: how many training images of each class every client has."""

from fedloom.common.receipts import check_receipt, read_receipt
from fedloom.planning import paths
from fedloom.planning.job_specs import PartitionChartJob
from fedloom.report import partition_chart


def run_job(job: PartitionChartJob, threads: int) -> None:
    """Write the chart of a partition as PNG and PDF."""
    partition = paths.data_inputs("partition_chart", **vars(job))["partition"]
    check_receipt(partition)

    # the store's receipt has the names of the classes
    classes = read_receipt(paths.path_for(paths.STORE, dataset=job.dataset))["classes"]

    png = paths.path_for(paths.PARTITION_CHART, **vars(job))
    partition_chart.draw_partition(partition, classes, png, png.with_suffix(".pdf"))
