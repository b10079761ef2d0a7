"""Make the data of one run in this process, apart from the results of the current folder."""

import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import check_receipt
from fedloom.federated.training_job import NO_SIGNALS
from fedloom.planning import job_receipts, paths
from fedloom.planning.job_specs import Job, TrainJob
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.planning.rules.rule import LARGE_SUFFIXES
from fedloom.planning.run_labels import Run
from fedloom.planning.study_jobs import Jobs, jobs_before_training

# as in the workflow, a job computes with one thread; the last bits depend on the number
THREADS = 1


def prepare_run(plan: Plan, run: Run, folder: Path, reuse: bool) -> None:
    """Make all that a run reads in `folder`/results, by the code of the workflow's jobs.

    With `reuse`, a result in the current folder is taken over instead, if it is what the study asks
    for. The current folder is only read.

    A run whose options are tuned reads the choice among its trials. If that has to be made, the
    trials are trained, and a note says so.

    Raises:
        FedLoomError: a job failed, or results changed while they were taken over.
    """
    jobs = jobs_before_training(plan, run)
    usable: set[Path] = set()
    if reuse:
        usable = _usable_results(plan, jobs)
        # what is known of a hub's weights
        _take_over([paths.path_for(paths.WEIGHTS, backbone=run.backbone)], folder)

    missing = _take_over_or_list(plan, run, jobs, usable, folder)
    if reuse:
        _check_still_usable(plan, jobs, folder)

    _say_what_is_trained(run, [job for _, job in missing if isinstance(job, TrainJob)])
    with paths.results_below(folder):
        for rule, job in missing:
            _run_job(rule, job)


def _each_job(plan: Plan, jobs: Jobs) -> Iterator[tuple[str, Job]]:
    """Yield every job with its rule."""
    for rule, by_file in jobs.items():
        for labels in by_file.values():
            yield rule, plan.job(rule, labels)


def _usable_results(plan: Plan, jobs: Jobs) -> set[Path]:
    """Return the files of all results of these jobs that exist and are what the study asks for."""
    stale = job_receipts.stale(plan, jobs)
    usable = set[Path]()
    outdated = set[Path]()
    for rule, job in _each_job(plan, jobs):
        outputs = RULES[rule].outputs(job)
        # what was made from an outdated result is outdated too
        if outputs[0] in stale or not outdated.isdisjoint(RULES[rule].inputs(job)):
            outdated.update(outputs)
        elif all(file.is_file() for file in outputs):
            usable.update(outputs)
    return usable


def _take_over_or_list(
    plan: Plan, run: Run, jobs: Jobs, usable: set[Path], folder: Path
) -> list[tuple[str, Job]]:
    """Take over the usable results that a run needs; return the jobs that make all others.

    The jobs are returned with their rules, in an order in which they can run. The results that they
    read are taken over, or made by others of them.
    """
    needed = {*plan.run_inputs(run).values(), *map(Path, plan.choice_file(run))}
    missing = list[tuple[str, Job]]()

    # go back from what the run reads to the jobs that make it; a job may need no other job
    for rule, job in reversed([*_each_job(plan, jobs)]):
        outputs = RULES[rule].outputs(job)
        if needed.isdisjoint(outputs):
            continue
        if not usable.issuperset(outputs) or not _take_over(outputs, folder):
            missing.append((rule, job))
            needed.update(RULES[rule].inputs(job))
    return missing[::-1]


def _run_job(rule: str, job: Job) -> None:
    """Run a job in this process, or in a thread of it, whose signals stay as they are."""
    run_job = import_module(f"fedloom.jobs.{rule}_job").run_job
    if isinstance(job, TrainJob):
        run_job = partial(run_job, stopping=NO_SIGNALS)
    run_job(job, THREADS)


def _take_over(files: Sequence[Path], folder: Path) -> bool:
    """Put results of the current folder at the same paths below `folder`.

    Return False, and put none there, if one of them is missing or damaged.
    """
    copies = [folder / file for file in files]
    for file, copy in zip(files, copies, strict=True):
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            _link(file, copy)

    # planning compares small files with the digests in receipts, but not large ones
    if all(map(_is_whole, copies)):
        return True
    for copy in copies:
        copy.unlink(missing_ok=True)
    return False


def _link(file: Path, copy: Path) -> None:
    """Make a hard link to a file; on another file system, copy it.

    A result is replaced by a new file, never written into. So the link keeps the content that it
    has now, which a symbolic link would not.
    """
    try:
        os.link(file.resolve(), copy)
    except OSError:
        shutil.copyfile(file, copy)


def _is_whole(file: Path) -> bool:
    """Return True if a file exists, and, if it is large, is what its receipt describes."""
    if file.suffix not in LARGE_SUFFIXES:
        return file.is_file()
    try:
        check_receipt(file)
    except FedLoomError:
        return False
    return True


def _check_still_usable(plan: Plan, jobs: Jobs, folder: Path) -> None:
    """Check that the results below `folder` are those that were usable when they were looked for.

    A job removes its receipt before it replaces its result. So a result that is usable before and
    after it is taken over has not been replaced in between by one that the study does not ask for.

    Raises:
        FedLoomError: another process has replaced a result.
    """
    usable = _usable_results(plan, jobs)
    for rule, job in _each_job(plan, jobs):
        for file in RULES[rule].outputs(job):
            if (folder / file).exists() and file not in usable:
                raise FedLoomError(
                    f"{file}: must not change while it is read, got another file from another "
                    "process; call fedloom.rounds again when that has ended"
                )


def _say_what_is_trained(run: Run, jobs: Collection[TrainJob]) -> None:
    """Print a note if jobs of trials are run before a run, which may take longer than the run."""
    if not jobs:
        return
    trials = _counted(len({job.spec.run for job in jobs}), "trial")
    rounds = _counted(sum(job.last - job.after for job in jobs), "round")
    print(
        f"note: {run.method}: first trains {trials} for {rounds} in all, to choose its options "
        "(study.tune); after `fedloom run`, reuse=True takes the options chosen there",
        file=sys.stderr,
    )


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 trial" and "2 trials"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"
