"""FedLoom: federated prompt tuning as one Snakemake workflow.

From Python or a notebook, `run` runs a study, and `results` returns its evaluations as a data frame
(`scan`: as a lazy view); `export` writes them into a folder for a paper's supplement. `rounds`
trains one run in this process, round by round. `load` returns the model that a run has trained, and
`publish` writes it into a folder that needs no study.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedloom.cli.inspect.results import export, results, scan
    from fedloom.cli.make.publish import publish
    from fedloom.cli.run.from_python import run
    from fedloom.cli.run.rounds import rounds
    from fedloom.common.errors import FedLoomError
    from fedloom.models.load import load

__all__ = ["FedLoomError", "export", "load", "publish", "results", "rounds", "run", "scan"]

MODULES = {
    "FedLoomError": "fedloom.common.errors",
    "export": "fedloom.cli.inspect.results",
    "load": "fedloom.models.load",
    "publish": "fedloom.cli.make.publish",
    "results": "fedloom.cli.inspect.results",
    "rounds": "fedloom.cli.run.rounds",
    "run": "fedloom.cli.run.from_python",
    "scan": "fedloom.cli.inspect.results",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: every command imports this module, few need pandas."""
    if name not in MODULES:
        raise AttributeError(f"module 'fedloom' has no attribute '{name}'")
    return getattr(import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    """List the names that are imported on demand too, for completion."""
    return sorted(globals() | MODULES)
