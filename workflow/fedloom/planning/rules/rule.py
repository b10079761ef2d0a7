"""Define what planning asks a rule."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from fedloom.common.receipts import receipt_path
from fedloom.config.kind_plugins import plugins_of_type
from fedloom.config.kinds import KINDS_FROM_PLUGINS
from fedloom.config.settings import Settings, family_of
from fedloom.hooks.discovery import PluginManifest
from fedloom.planning.job_specs import Job
from fedloom.planning.run_labels import Wildcards

AnyJob = TypeVar("AnyJob", bound=Job)
# the modules of fedloom, and the plugins, that a job starts from
Code = tuple[tuple[str, ...], tuple[PluginManifest, ...]]

# the suffixes of results that may be large; each has a receipt beside it with its digest
LARGE_SUFFIXES = (".arrow", ".safetensors")


class Rule(ABC, Generic[AnyJob]):
    """A rule of the workflow, with the answers that planning needs about its jobs.

    It has no state. Its job is a dataclass of fedloom.planning.job_specs, and the module
    fedloom.jobs.<name>_job runs it.
    """

    # the rule's name in workflow/rules
    name: ClassVar[str]

    @abstractmethod
    def make_job(self, settings: Settings, wildcards: Wildcards) -> AnyJob:
        """Return the job that the wildcards name."""

    @abstractmethod
    def inputs(self, job: AnyJob) -> list[Path]:
        """Return the results that a job reads, with the receipt of each large file in its place."""

    @abstractmethod
    def outputs(self, job: AnyJob) -> list[Path]:
        """Return the files that a job writes, including the receipts beside large files.

        The log and the receipt of the job are named after the first file.
        """

    def named_code(self, job: AnyJob) -> Code:
        """Return the modules and plugins that a job imports at run time, by names that it holds."""
        return (), ()

    def code(self, job: AnyJob) -> Code:
        """Return the modules and plugins that a job starts from; imports lead to the rest."""
        modules, plugins = self.named_code(job)
        return (f"fedloom.jobs.{self.name}_job", *modules), plugins


def code_of_kind(plugin_type: str, name: str, module: str | None = None) -> Code:
    """Return the plugin of this name, or else the module that defines FedLoom's own kind.

    Args:
        plugin_type: `source`, `scheme`, `table` or `figure`.
        name: the name of the source, scheme, table or figure.
        module: the module of FedLoom's own kind, if it is known already.
    """
    plugin = plugins_of_type(plugin_type).get(name)
    if plugin is not None:
        return (), (plugin,)
    return (module or KINDS_FROM_PLUGINS[plugin_type].own[name].__module__,), ()


def code_of_backbone(library: str) -> Code:
    """Return the module of a backbone's family, and the plugin of its library if it is one."""
    plugin = plugins_of_type("backbone").get(library)
    if plugin is not None:
        return ("fedloom.backbones.plugin_vit",), (plugin,)
    return (f"fedloom.backbones.{family_of(library)}",), ()


def with_receipt(file: Path) -> list[Path]:
    """Return a large file and the receipt beside it."""
    return [file, receipt_path(file)]


def receipts_of(files: Iterable[Path]) -> list[Path]:
    """Return the receipts of large files."""
    return [receipt_path(file) for file in files]
