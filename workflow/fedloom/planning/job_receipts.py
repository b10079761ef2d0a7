"""Receipts of jobs: what results were made from, which planning compares with the study.

A receipt has the digests of the job, of its source files and of its inputs, and the sha256 of each
small output; large ones have receipts beside them. Snakemake keeps similar records in .snakemake,
which do not come along where results are copied, and which people delete to remove a lock.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import digest, read_sealed, sha256, write_sealed
from fedloom.planning import job_files, paths
from fedloom.planning.job_specs import to_json
from fedloom.planning.plan import Plan
from fedloom.planning.study_jobs import jobs_of_study

# why a result is made again
SETTINGS = "made from other settings"
SOURCES = "made from other source files"
DATA = "made from other data"
UNKNOWN = "without a receipt"
CHANGED = "changed since it was written"
REASONS = {"job": SETTINGS, "sources": SOURCES, "inputs": DATA}  # by the fact of a receipt


@dataclass(frozen=True)
class Making:
    """A job at work, and the digests of what its result is made from."""

    rule: str
    job: Any
    made_from: dict[str, str]


def begin(rule: str, job: Any, sources: str) -> Making:
    """Digest what a job's result is to be made from, and remove the receipt of its last result.

    Killed from here on, the job leaves outputs without a receipt, which are not taken for results.
    """
    inputs = job_files.inputs(rule, job)
    there = {str(file): sha256(file) for file in inputs if file.is_file()}  # else the job fails
    _file_of(rule, job).unlink(missing_ok=True)
    return Making(rule, job, _made_from(job, sources, there))


def end(making: Making) -> None:
    """Write the receipt of a job that has written its outputs."""
    outputs = job_files.outputs(making.rule, making.job)
    small = [file for file in outputs if file.suffix not in job_files.LARGE]
    digests = {str(file): sha256(file) for file in small}
    write_sealed(_file_of(making.rule, making.job), making.made_from | {"outputs": digests})


def _file_of(rule: str, job: Any) -> Path:
    """Return where the receipt of a job lies."""
    return paths.job_receipt(job_files.outputs(rule, job)[0])


def _made_from(job: Any, sources: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of a job, of its source files, and of its inputs by their names."""
    return {"job": digest(to_json(job)), "sources": sources, "inputs": digest(inputs)}


def stale(plan: Plan) -> dict[Path, str]:
    """Return the results of a study that are to be made again, by their first files, and why.

    They were made from other settings, source files or data than the study asks for, or changed
    since. Results that are missing are not among them, nor those that only follow from stale ones.
    """
    jobs = {
        file: (rule, plan.job(rule, labels))
        for rule, by_file in jobs_of_study(plan).items()
        for file, labels in by_file.items()
    }

    # what the receipts say, and what is so now
    receipts = {file: _read(*job) for file, job in jobs.items()}
    digests = _Digests(receipts.values())
    result = dict[Path, str]()
    damaged = set[Path]()
    for file, (rule, job) in jobs.items():
        receipt = receipts[file]
        if not file.is_file():
            continue
        if receipt is None:
            result[file] = UNKNOWN
            continue
        inputs = job_files.inputs(rule, job)
        by_name = {str(each): digests.of(each) for each in inputs}
        now = _made_from(job, plan.sources(rule, job), by_name)
        differing = [reason for fact, reason in REASONS.items() if receipt[fact] != now[fact]]
        if differing:
            result[file] = differing[0]
        if differing == [DATA]:
            damaged.update(digests.changed(inputs))

    # results that others have read in another state
    for file, job in jobs.items():
        if not damaged.isdisjoint(job_files.outputs(*job)):
            result[file] = CHANGED
    return result


class _Digests:
    """The digests of results, as the receipts of their jobs have them."""

    def __init__(self, receipts: Iterable[dict[str, Any] | None]):
        self.written: dict[str, str] = {}  # by the names of outputs
        for receipt in receipts:
            if receipt is not None:
                self.written |= receipt["outputs"]

    def of(self, file: Path) -> str:
        """Return the digest of a result, which may have been deleted since; "" if there is none."""
        if str(file) in self.written:
            return self.written[str(file)]
        return sha256(file) if file.is_file() else ""

    def changed(self, files: Iterable[Path]) -> list[Path]:
        """Return those of the files that are not as they were written."""
        there = [file for file in files if str(file) in self.written and file.is_file()]
        return [file for file in there if sha256(file) != self.written[str(file)]]


def _read(rule: str, job: Any) -> dict[str, Any] | None:
    """Return the facts of a job's receipt; None if it is missing or damaged."""
    try:
        return read_sealed(_file_of(rule, job))
    except FedLoomError:
        return None


def note(reasons: Iterable[str], again: bool) -> str:
    """Return a line that counts stale results by the reasons of `stale`.

    It says that they are made `again`, or else that they are kept.
    """
    counted = Counter(reasons)
    counts = ", ".join(f"{number} {reason}" for reason, number in counted.items())
    if again:
        return f"note: results to be made again, with all that follows: {counts}"
    return (
        f"note: results that are not what the study asks for are kept (--rerun-triggers): {counts}"
    )
