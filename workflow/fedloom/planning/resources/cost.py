"""Estimate what a whole study costs; the estimate is too large rather than too small."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from fedloom.config.settings import Settings
from fedloom.planning.plan import Plan
from fedloom.planning.resources.backbone_sizes import MB_PER_FLOAT, sizes
from fedloom.planning.resources.estimates import (
    CORE_OPERATIONS_PER_SECOND,
    Work,
    contents,
    estimate_job,
    estimate_run,
    image_megabytes,
)
from fedloom.planning.runs import trial_runs
from fedloom.planning.study_jobs import Jobs, jobs_of_study

# Operations per second of a data-centre GPU, assumed. In float32, this is between a half and two
# thirds of what an H100 can do (67 tera). In tf32 and bf16, it is a third of that (494 and 989).
RATES = {"float32": 4e13, "tf32": 1.6e14, "bf16": 3e14}
# seconds that a job takes to start, as a fork of the job server
FORK_SECONDS = 0.2
# the rules whose jobs are estimated, beside `train`
ESTIMATED = ("dataset", "cache", "prototypes", "block_accuracy", "artefact")


@dataclass(frozen=True)
class StudyCost:
    """Jobs, operations, hours and disk of a study, as if no result existed yet."""

    # the number of runs, and of trials before them that choose options (study.tune)
    runs: int
    trials: int
    # the number of jobs by rule
    jobs: dict[str, int]
    # floating-point operations of all jobs
    operations: float
    # seconds of one core, for work that no GPU does, start-up included
    seconds: float
    # floating-point operations of the longest run or trial, whose jobs follow each other
    longest: float
    # megabytes of images and caches, by kind
    disk: dict[str, float]
    precision: str

    def gpu_hours(self, rate: float | None = None) -> float:
        """Return the hours of one GPU at a rate in operations per second; default: RATES."""
        rate = rate or RATES[self.precision]
        return self.operations / rate / 3600


def study_cost(plan: Plan) -> StudyCost:
    """Return what a study costs."""
    settings = plan.settings
    trials = trial_runs(plan.settings)
    jobs = jobs_of_study(plan)

    # the work of the jobs before and after training, and the work of training
    takes = list[Work]()
    for rule in ESTIMATED:
        takes += [estimate_job(settings, rule, job) for job in jobs[rule].values()]
    trained = [estimate_run(settings, run) for run in (*plan.runs, *trials)]

    count = {rule: len(found) for rule, found in jobs.items() if found}
    return StudyCost(
        runs=len(plan.runs),
        trials=len(trials),
        jobs=count,
        operations=sum(each.operations for each in (*takes, *trained)),
        seconds=sum(each.seconds for each in takes) + FORK_SECONDS * sum(count.values()),
        longest=max((each.operations for each in trained), default=0.0),
        disk=_disk(settings, jobs),
        precision=settings.study.precision,
    )


def job_seconds(plan: Plan) -> dict[str, dict[Path, float]]:
    """Return the seconds that each job of a study takes on one core, by rule and first file.

    Only jobs of `train` and of the rules ESTIMATED are included.
    """

    jobs = jobs_of_study(plan)
    found = dict[str, dict[Path, float]]()
    for rule in (*ESTIMATED, "train"):
        seconds = dict[Path, float]()
        for file, labels in jobs[rule].items():
            work = estimate_job(plan.settings, rule, labels)
            computing = work.operations / CORE_OPERATIONS_PER_SECOND
            seconds[file] = FORK_SECONDS + work.seconds + computing

        # a rule without jobs is left out
        if seconds:
            found[rule] = seconds
    return found


def _disk(settings: Settings, jobs: Jobs) -> dict[str, float]:
    """Return the megabytes of images, and of each kind of cache."""
    datasets = settings.datasets
    megabytes = defaultdict[str, float](float)
    for job in jobs["dataset"].values():
        megabytes["images"] += image_megabytes(datasets[job.dataset])
    for job in jobs["cache"].values():
        size = sizes(settings.backbones[job.backbone])

        # features: the class token at the input of every block and at the end, in float32
        rows: float = size.depth + 1
        # patches: all tokens at the end, in half the bytes
        if job.cache == "patches":
            rows = size.tokens / 2
        floats = contents(datasets[job.dataset]).images * rows * size.width
        megabytes[job.cache] += floats * MB_PER_FLOAT
    return dict(megabytes)
