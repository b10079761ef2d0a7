"""Write the receipts of jobs, and find results that are stale.

The receipt of a job says what its result was made from, and planning compares this with what the
study asks for. It holds:

- the digests of the job, of its source files and of its inputs;
- the sha256 of each small output. A large output has a receipt of its own beside it.

Snakemake keeps similar records in .snakemake. But these are left behind when results are copied,
and people delete that folder to remove a lock.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import digest, read_sealed, sha256, write_sealed
from fedloom.planning import paths
from fedloom.planning.job_specs import Job, to_json
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.planning.rules.rule import LARGE_SUFFIXES
from fedloom.planning.study_jobs import Jobs, jobs_of_study

# why a result is made again
FROM_OTHER_SETTINGS = "made from other settings"
FROM_OTHER_SOURCES = "made from other source files"
FROM_OTHER_DATA = "made from other data"
UNKNOWN = "without a receipt"
CHANGED = "changed since it was written"
# stands for the digest of a result that is missing, and that no valid receipt describes
NO_DIGEST = ""
# The reason to give if a fact of a receipt differs. The first one that differs is given. Sources
# come first: a job of `train` contains their digest, so that "job" differs too.
REASONS = {"sources": FROM_OTHER_SOURCES, "job": FROM_OTHER_SETTINGS, "inputs": FROM_OTHER_DATA}


@dataclass(frozen=True)
class StartedJob:
    """A job at work, and the digests of what its result is made from."""

    rule: str
    job: Job
    made_from: dict[str, str]


def begin_job(rule: str, job: Job, sources: str) -> StartedJob:
    """Compute the digests of what a job reads, and remove the receipt of its last result.

    If the job is killed after this, its outputs have no receipt, and are not taken for results.
    """
    # if an input is missing, the job will fail with an error of its own
    inputs = RULES[rule].inputs(job)
    there = {str(file): sha256(file) for file in inputs if file.is_file()}

    _receipt_path(rule, job).unlink(missing_ok=True)
    return StartedJob(rule, job, _made_from(job, sources, there))


def end_job(started: StartedJob) -> None:
    """Write the receipt of a job that has written its outputs."""
    outputs = RULES[started.rule].outputs(started.job)
    small = [file for file in outputs if file.suffix not in LARGE_SUFFIXES]
    digests = {str(file): sha256(file) for file in small}
    facts = started.made_from | {"outputs": digests}
    write_sealed(_receipt_path(started.rule, started.job), facts)


def _receipt_path(rule: str, job: Job) -> Path:
    """Return the path of the receipt of a job."""
    return paths.job_receipt(RULES[rule].outputs(job)[0])


def _made_from(job: Job, sources: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of a job, its sources and its inputs, from the digest of each input."""
    return {"job": digest(to_json(job)), "sources": sources, "inputs": digest(inputs)}


def stale(plan: Plan, asked: Jobs | None = None) -> dict[Path, str]:
    """Return the results of a study that are stale, by their first files, and the reason for each.

    If jobs are `asked` for, only their results count. These must include the jobs whose results
    they read.

    A result is stale in three cases:

    - it was made from other settings, source files or data than the study asks for;
    - it was changed later;
    - it has no receipt.

    A missing result is not included. Nor is a result that is only made from stale ones: Snakemake
    makes it again by itself.
    """
    # every job of the study, with its rule, by the first file that it writes
    jobs = dict[Path, tuple[str, Job]]()
    if asked is None:
        asked = jobs_of_study(plan)
    for rule, by_file in asked.items():
        for file, labels in by_file.items():
            jobs[file] = (rule, plan.job(rule, labels))

    # the digests of results that later jobs read
    receipts = {file: _read_receipt(*job) for file, job in jobs.items()}
    digests = _known_digests(receipts.values())
    _forget_outdated(plan, jobs, receipts, digests)

    result = dict[Path, str]()
    for file, job in jobs.items():
        # a missing result is made anyhow
        if not file.is_file():
            continue

        # nobody knows what a result without a receipt was made from
        receipt = receipts[file]
        if receipt is None:
            result[file] = UNKNOWN
            continue

        reason = _first_difference(plan, job, receipt, digests)
        if reason is not None:
            result[file] = reason
        elif _is_changed(receipt):
            result[file] = CHANGED
    return result


def _forget_outdated(
    plan: Plan,
    jobs: Mapping[Path, tuple[str, Job]],
    receipts: Mapping[Path, JsonDict | None],
    digests: dict[str, str],
) -> None:
    """If a result is missing and outdated, set the digests of its job's outputs to NO_DIGEST.

    People delete caches and states after their use. This alone makes no result stale. But the study
    may now ask for another result in the place of a missing one. Then the missing one is outdated,
    and every result that was made from it is stale.
    """
    missing = [
        file for file, receipt in receipts.items() if receipt is not None and not file.is_file()
    ]

    # a missing result may be made from another missing one: look again after each outdated one
    is_settled = False
    while not is_settled:
        is_settled = True
        for file in missing:
            receipt = receipts[file]
            assert receipt is not None

            # results that were made from its outputs are not what the study asks for
            if _first_difference(plan, jobs[file], receipt, digests) is not None:
                for output in receipt["outputs"]:
                    digests[output] = NO_DIGEST

                # the list has changed, so its loop begins again
                missing.remove(file)
                is_settled = False
                break


def _first_difference(
    plan: Plan, job: tuple[str, Job], receipt: JsonDict, digests: Mapping[str, str]
) -> str | None:
    """Return the first of REASONS why a result is not what the study asks for; None if it is."""
    # what the result would be made from now
    rule, content = job
    inputs = {str(file): _current_digest(file, digests) for file in RULES[rule].inputs(content)}
    now = _made_from(content, plan.sources(rule, content), inputs)

    reasons = (reason for fact, reason in REASONS.items() if receipt[fact] != now[fact])
    return next(reasons, None)


def _known_digests(receipts: Iterable[JsonDict | None]) -> dict[str, str]:
    """Return the digests of small outputs by their paths, from the receipts of their jobs.

    An output may have been deleted since then.
    """
    digests = dict[str, str]()
    for receipt in receipts:
        if receipt is not None:
            digests.update(receipt["outputs"])
    return digests


def _current_digest(file: Path, digests: Mapping[str, str]) -> str:
    """Return the known digest of a result; else the digest of its file; without one, NO_DIGEST."""
    if str(file) in digests:
        return digests[str(file)]
    if file.is_file():
        return sha256(file)
    return NO_DIGEST


def _is_changed(receipt: JsonDict) -> bool:
    """Return True if a small output exists, and is not what its job wrote."""
    for name, written in receipt["outputs"].items():
        file = Path(name)
        if file.is_file() and sha256(file) != written:
            return True
    return False


def _read_receipt(rule: str, job: Job) -> JsonDict | None:
    """Return the facts of a job's receipt; None if it is missing, damaged or of another format."""
    try:
        facts = read_sealed(_receipt_path(rule, job))
    except FedLoomError:
        return None
    if not facts.keys() >= {*REASONS, "outputs"}:
        return None
    return facts


def note(reasons: Iterable[str], again: bool) -> str:
    """Return a line that counts stale results by the reasons of `stale`.

    If `again` is true, the line says that they are made again; otherwise, that they are kept.
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
