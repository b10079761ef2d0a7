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
FROM_OTHER_SETTINGS = "made from other settings"
SOURCES = "made from other source files"
FROM_OTHER_DATA = "made from other data"
UNKNOWN = "without a receipt"
CHANGED = "changed since it was written"
# the digest of a result that is neither there nor in a receipt that holds
NO_DIGEST = ""
# by the fact of a receipt; the job of `train` has the digest of its sources, too
REASONS = {"sources": SOURCES, "job": FROM_OTHER_SETTINGS, "inputs": FROM_OTHER_DATA}


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
    # an input that is missing lets the job fail, with an error of its own
    inputs = job_files.inputs(rule, job)
    there = {str(file): sha256(file) for file in inputs if file.is_file()}

    _file_of(rule, job).unlink(missing_ok=True)
    return Making(rule, job, _made_from(job, sources, there))


def end(making: Making) -> None:
    """Write the receipt of a job that has written its outputs."""
    outputs = job_files.outputs(making.rule, making.job)
    small = [file for file in outputs if file.suffix not in job_files.LARGE_SUFFIXES]
    digests = {str(file): sha256(file) for file in small}
    facts = making.made_from | {"outputs": digests}
    write_sealed(_file_of(making.rule, making.job), facts)


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
    # every job of the study, with its rule, by the first file that it writes
    jobs = dict[Path, tuple[str, Any]]()
    for rule, by_file in jobs_of_study(plan).items():
        for file, labels in by_file.items():
            jobs[file] = (rule, plan.job(rule, labels))

    # the digests of results that later jobs read
    receipts = {file: _read(*job) for file, job in jobs.items()}
    digests = _digests_of(receipts.values())
    _forget_outdated(plan, jobs, receipts, digests)

    result = dict[Path, str]()
    for file, job in jobs.items():
        # what is missing is made anyhow
        if not file.is_file():
            continue

        # nobody knows what a result without a receipt was made from
        receipt = receipts[file]
        if receipt is None:
            result[file] = UNKNOWN
            continue

        differing = _differing(plan, job, receipt, digests)
        if differing:
            result[file] = differing[0]
        elif _is_changed(receipt):
            result[file] = CHANGED
    return result


def _forget_outdated(
    plan: Plan,
    jobs: Mapping[Path, tuple[str, Any]],
    receipts: Mapping[Path, dict[str, Any] | None],
    digests: dict[str, str],
) -> None:
    """Give NO_DIGEST to the outputs of jobs whose result is missing and would be another one now.

    People delete caches and states once they are used, and that makes nothing stale. But what was
    made from a missing result is stale if the study now asks for another one.
    """
    missing = [
        file for file, receipt in receipts.items() if receipt is not None and not file.is_file()
    ]

    # what follows from a missing result may be missing too: look again after each that is outdated
    is_settled = False
    while not is_settled:
        is_settled = True
        for file in missing:
            receipt = receipts[file]
            assert receipt is not None

            # what is made from its outputs is not what the study asks for
            if _differing(plan, jobs[file], receipt, digests):
                for output in receipt["outputs"]:
                    digests[output] = NO_DIGEST

                # the list has changed, so its loop begins again
                missing.remove(file)
                is_settled = False
                break


def _differing(
    plan: Plan, job: tuple[str, Any], receipt: dict[str, Any], digests: Mapping[str, str]
) -> list[str]:
    """Return in what a result was made otherwise than the study asks for, as REASONS have it."""
    # what the result would be made from now
    rule, content = job
    inputs = {str(file): _digest_of(file, digests) for file in job_files.inputs(rule, content)}
    now = _made_from(content, plan.sources(rule, content), inputs)

    return [reason for fact, reason in REASONS.items() if receipt[fact] != now[fact]]


def _digests_of(receipts: Iterable[dict[str, Any] | None]) -> dict[str, str]:
    """Return the digests of small results by their names, as the receipts of their jobs have them.

    A result may have been deleted since.
    """
    digests = dict[str, str]()
    for receipt in receipts:
        if receipt is not None:
            digests.update(receipt["outputs"])
    return digests


def _digest_of(file: Path, digests: Mapping[str, str]) -> str:
    """Return the digest of a result, or NO_DIGEST."""
    if str(file) in digests:
        return digests[str(file)]
    if file.is_file():
        return sha256(file)
    return NO_DIGEST


def _is_changed(receipt: dict[str, Any]) -> bool:
    """Return True if a small output is there that is not as its job wrote it."""
    for name, written in receipt["outputs"].items():
        file = Path(name)
        if file.is_file() and sha256(file) != written:
            return True
    return False


def _read(rule: str, job: Any) -> dict[str, Any] | None:
    """Return the facts of a job's receipt; None if it is missing, damaged or of another format."""
    try:
        facts = read_sealed(_file_of(rule, job))
    except FedLoomError:
        return None
    if not facts.keys() >= {*REASONS, "outputs"}:
        return None
    return facts


def note(reasons: Iterable[str], again: bool) -> str:
    """Return a line that counts stale results by the reasons of `stale`.

    It says that they are made `again`, or else that they are kept.
    """
    counted = Counter(reasons)
    counts = ", ".join(f"{number} {reason}" for reason, number in counted.items())
    if again:
        return (
            "note: results that are not what the study asks for, made again with all that follows "
            f"if they are needed: {counts}"
        )
    return (
        f"note: results that are not what the study asks for are kept (--rerun-triggers): {counts}"
    )
