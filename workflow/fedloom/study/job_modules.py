"""The code that a job runs: modules of fedloom, and a source or a scheme of a plugin."""

from dataclasses import dataclass
from typing import Any

from fedloom.config import data_plugins
from fedloom.config.settings import Dataset
from fedloom.hooks.manifest import Located
from fedloom.study import jobs, staleness


@dataclass(frozen=True)
class Code:
    """What a job runs.

    Attributes:
        modules: those of fedloom, by name, from which imports lead to all others.
        plugins: sources and schemes of third parties.
    """

    modules: tuple[str, ...]
    plugins: tuple[Located, ...] = ()

    def files(self) -> list[str]:
        """Return all its source files, as paths from here."""
        own = [file for plugin in self.plugins for file in staleness.files_of(plugin)]
        return sorted({*staleness.library_sources(*self.modules), *staleness.relative(own)})


def of_stage(stage: str, *modules: str) -> Code:
    """Return the code of a stage and of modules of fedloom that it imports by name."""
    return Code((f"fedloom.stages.{stage}", *modules))


def of_data(stage: str, kind: str, name: str) -> Code:
    """Return the code of a stage and of the source or scheme that it calls."""
    plugin = data_plugins.discover(kind).get(name)
    if plugin is None:
        return of_stage(stage, f"fedloom.data.{kind}s.{name}")
    return Code(of_stage(stage).modules, (plugin,))


def of_dataset(dataset: Dataset) -> Code:
    """Return the code that makes a dataset: of its source, and of those of its parts."""
    sources = _sources(dataset.source, dataset.settings)
    every = [of_data("dataset", "source", source) for source in sources]
    modules = dict.fromkeys(module for code in every for module in code.modules)
    return Code(tuple(modules), tuple(plugin for code in every for plugin in code.plugins))


def _sources(source: str, settings: dict[str, Any]) -> list[str]:
    """Return the names of a source and of those of its parts."""
    parts = settings.get("parts", {}).values()
    return [source, *(name for part in parts for name in _sources(part["source"], part))]


def of_cache(family: str) -> Code:
    """Return the code that runs a backbone of a family over a dataset."""
    return of_stage("cache", f"fedloom.backbones.{family}")


def of_output(stage: str, kind: str) -> Code:
    """Return the code of a table or a figure of a kind."""
    return of_stage(stage, f"fedloom.report.{stage}s.{kind}")


def of_job(stage: str, job: Any) -> Code:
    """Return the code of a stage's job that trains nothing."""
    match job:
        case jobs.DatasetJob():
            return of_dataset(job.dataset)
        case jobs.PartitionJob():
            return of_data(stage, "scheme", job.partition.scheme)
        case jobs.CacheJob():
            return of_cache(job.backbone.family)
        case jobs.TableJob() | jobs.FigureJob():
            return of_output(stage, job.kind)
    return of_stage(stage)
