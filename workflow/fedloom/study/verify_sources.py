"""Load all that a job runs at its start, and refuse code that the plan did not know.

Jobs of a run do so by themselves, since their receipts record it (fedloom.study.provenance).
"""

from typing import Any

from fedloom.hooks import loader
from fedloom.study import job_modules, provenance, staleness


def load(stage: str, job: Any, planned: str) -> None:
    """Import all that a stage's job runs, and check that it is what the plan knew.

    Args:
        planned: digest of the source files' hashes.

    Raises:
        FedLoomError: a file was edited since.
    """
    runs = job_modules.of_job(stage, job)
    for plugin in runs.plugins:
        loader.import_plugin(plugin)
    staleness.import_all(runs.modules, runs.plugins)
    provenance.checked(f"rule {stage}", runs.files(), planned, "it is made anew")
