"""Make the data of one run in this process, apart from the results of the current folder."""

import sys
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path

from fedloom.config.protocols import study_for
from fedloom.planning import job_receipts, paths
from fedloom.planning.job_specs import Job
from fedloom.planning.plan import Plan
from fedloom.planning.rules import RULES
from fedloom.planning.run_labels import Run
from fedloom.planning.runs import trials_of_one_run
from fedloom.planning.study_jobs import Jobs, jobs_before_training

# as in the workflow, a job computes with one thread; the last bits depend on the number
THREADS = 1


def prepare_run(plan: Plan, run: Run, folder: Path, reuse: bool) -> None:
    """Make all that a run reads in `folder`/results, by the code of the workflow's jobs.

    With `reuse`, a result in the current folder is linked there instead, if it is what the study
    asks for. The current folder is only read.

    A run whose options are tuned reads the choice among its trials. If that has to be made, the
    trials are trained, and a note says so.
    """
    jobs = jobs_before_training(plan, run)
    usable: set[Path] = set()
    if reuse:
        usable = _usable_results(plan, jobs)

    # go back from what the run reads to the jobs that make it; a job may need no other job
    needed = {*plan.run_inputs(run).values(), *map(Path, plan.choice_file(run))}
    linked = list[Path]()
    missing = list[tuple[str, Job]]()
    for rule, job in reversed([*_each_job(plan, jobs)]):
        outputs = RULES[rule].outputs(job)
        if needed.isdisjoint(outputs):
            continue
        if usable.issuperset(outputs):
            linked += outputs
        else:
            missing.append((rule, job))
            needed.update(RULES[rule].inputs(job))

    if reuse:
        # what is known of a hub's weights
        weights = paths.path_for(paths.WEIGHTS, backbone=run.backbone)
        linked += filter(Path.is_file, [weights])
    _link(linked, folder)
    _say_what_is_trained(plan, run, missing)
    with paths.results_below(folder):
        for rule, job in reversed(missing):
            import_module(f"fedloom.jobs.{rule}_job").run_job(job, THREADS)


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


def _link(files: Collection[Path], folder: Path) -> None:
    """Link results of the current folder at the same paths below `folder`."""
    for file in files:
        link = folder / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.absolute())


def _say_what_is_trained(plan: Plan, run: Run, missing: Collection[tuple[str, Job]]) -> None:
    """Print a note if trials are trained before the run, which may take longer than the run."""
    if not any(rule == "train" for rule, _ in missing):
        return
    trials = trials_of_one_run(plan.settings, run)
    rounds = study_for(plan.settings, trials[0].partition, trials[0].method).rounds
    print(
        f"note: {run.method}: first trains {len(trials)} trials of {rounds} rounds, which choose "
        "its options (study.tune); after `fedloom run`, reuse=True takes the options chosen there",
        file=sys.stderr,
    )
