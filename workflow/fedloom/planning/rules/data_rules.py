"""Define the rules that make data and measure frozen backbones; runs share their results."""

from dataclasses import replace
from pathlib import Path

from fedloom.common.json_types import JsonDict
from fedloom.config import settings as config
from fedloom.config.protocols import study_for
from fedloom.config.settings import Settings
from fedloom.planning import paths
from fedloom.planning.job_specs import (
    BlockAccuracyJob,
    CacheJob,
    DatasetJob,
    PartitionChartJob,
    PartitionJob,
    PrototypesJob,
)
from fedloom.planning.rules.rule import (
    Code,
    Rule,
    code_of_backbone,
    code_of_kind,
    receipts_of,
    with_receipt,
)
from fedloom.planning.run_labels import Wildcards


class DatasetRule(Rule[DatasetJob]):
    """Writes a store."""

    name = "dataset"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> DatasetJob:
        """Return the job without a recipe's estimates and notes, whose change runs no job."""
        dataset = settings.datasets[wildcards.dataset]
        plain = replace(dataset, expected=config.Expected(), domains=None, notes=())
        return DatasetJob(plain)

    def inputs(self, job: DatasetJob) -> list[Path]:
        """Return no result: the job reads the images of its source."""
        return []

    def outputs(self, job: DatasetJob) -> list[Path]:
        """Return the store and its receipt."""
        return with_receipt(paths.path_for(paths.STORE, dataset=job.dataset.label))

    def named_code(self, job: DatasetJob) -> Code:
        """Return the code of the dataset's source, and of the sources of its parts."""
        modules = list[str]()
        plugins = []
        for source in _source_names(job.dataset.source, job.dataset.settings):
            own, found = code_of_kind("source", source)
            modules += own
            plugins += found
        return tuple(modules), tuple(plugins)


def _source_names(source: str, settings: JsonDict) -> list[str]:
    """Return the name of a source, and the names of the sources of its parts."""
    names = [source]
    for part in settings.get("parts", {}).values():
        names += _source_names(part["source"], part)
    return names


class PartitionRule(Rule[PartitionJob]):
    """Divides images over clients."""

    name = "partition"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> PartitionJob:
        """Return the job without `transfer_to`: datasets to test on do not change the division."""
        partition = settings.partitions[wildcards.partition]
        keys = {key: value for key, value in partition.settings.items() if key != "transfer_to"}
        return PartitionJob(
            wildcards.dataset, replace(partition, settings=keys), int(wildcards.seed)
        )

    def inputs(self, job: PartitionJob) -> list[Path]:
        """Return the receipt of the store."""
        return receipts_of(paths.data_inputs(self.name, dataset=job.dataset).values())

    def outputs(self, job: PartitionJob) -> list[Path]:
        """Return the partition and its receipt."""
        labels = {"dataset": job.dataset, "partition": job.partition.label, "seed": job.seed}
        return with_receipt(paths.path_for(paths.PARTITION, **labels))

    def named_code(self, job: PartitionJob) -> Code:
        """Return the code of the scheme."""
        return code_of_kind("scheme", job.partition.scheme)


class PartitionChartRule(Rule[PartitionChartJob]):
    """Draws a partition."""

    name = "partition_chart"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> PartitionChartJob:
        """Return the job, which has the labels of its partition."""
        return PartitionChartJob(wildcards.dataset, wildcards.partition, int(wildcards.seed))

    def inputs(self, job: PartitionChartJob) -> list[Path]:
        """Return the receipts of the partition and of the store, which names the classes."""
        store = paths.path_for(paths.STORE, dataset=job.dataset)
        return receipts_of([*paths.data_inputs(self.name, **vars(job)).values(), store])

    def outputs(self, job: PartitionChartJob) -> list[Path]:
        """Return the chart as PNG and PDF."""
        chart = paths.path_for(paths.PARTITION_CHART, **vars(job))
        return [chart, chart.with_suffix(".pdf")]


class CacheRule(Rule[CacheJob]):
    """Runs a frozen backbone over all images of a dataset."""

    name = "cache"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> CacheJob:
        """Return the job, which has the backbone's settings."""
        backbone = settings.backbones[wildcards.backbone]
        return CacheJob(wildcards.cache, wildcards.dataset, backbone)

    def inputs(self, job: CacheJob) -> list[Path]:
        """Return the receipt of the store."""
        return receipts_of(paths.data_inputs(self.name, dataset=job.dataset).values())

    def outputs(self, job: CacheJob) -> list[Path]:
        """Return the cache and its receipt."""
        labels = {"cache": job.cache, "dataset": job.dataset, "backbone": job.backbone.label}
        return with_receipt(paths.path_for(paths.CACHE, **labels))

    def named_code(self, job: CacheJob) -> Code:
        """Return the code of the backbone."""
        return code_of_backbone(job.backbone.library)


class PrototypesRule(Rule[PrototypesJob]):
    """Computes the warm start."""

    name = "prototypes"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> PrototypesJob:
        """Return the job, which takes as many clients as a round samples."""
        study = study_for(settings, wildcards.partition)
        return PrototypesJob(
            dataset=wildcards.dataset,
            partition=wildcards.partition,
            backbone=wildcards.backbone,
            seed=int(wildcards.seed),
            clients_per_round=study.clients_per_round,
            sampling=study.fixed_seeds.sampling,
        )

    def inputs(self, job: PrototypesJob) -> list[Path]:
        """Return the receipts of the store, the partition and the features."""
        return receipts_of(paths.data_inputs(self.name, **vars(job)).values())

    def outputs(self, job: PrototypesJob) -> list[Path]:
        """Return the tensors and their receipt."""
        return with_receipt(paths.path_for(paths.PROTOTYPES, **vars(job)))


class BlockAccuracyRule(Rule[BlockAccuracyJob]):
    """Measures a frozen backbone."""

    name = "block_accuracy"

    def make_job(self, settings: Settings, wildcards: Wildcards) -> BlockAccuracyJob:
        """Return the job, which has the labels of a dataset and a backbone."""
        return BlockAccuracyJob(wildcards.dataset, wildcards.backbone)

    def inputs(self, job: BlockAccuracyJob) -> list[Path]:
        """Return the receipts of the store and of the features."""
        return receipts_of(paths.data_inputs(self.name, **vars(job)).values())

    def outputs(self, job: BlockAccuracyJob) -> list[Path]:
        """Return the table of accuracies."""
        return [paths.path_for(paths.BLOCK_ACCURACY, **vars(job))]
