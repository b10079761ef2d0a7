"""What a study costs from nothing to its tables: an estimate, too large rather than too small."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from fedloom.config.settings import Settings
from fedloom.planning.plan import Plan
from fedloom.planning.resources.backbone_sizes import FLOAT, sizes
from fedloom.planning.resources.estimates import (
    RATE,
    Work,
    contents,
    estimate_job,
    estimate_run,
    image_megabytes,
)
from fedloom.planning.runs import trial_runs
from fedloom.planning.study_jobs import Jobs, jobs_of_study

# operations per second of a data-centre GPU, assumed: half to two thirds of what an H100 can do in
# float32 (67 tera), a third in the two others (494 and 989)
RATES = {"float32": 4e13, "tf32": 1.6e14, "bf16": 3e14}
# seconds that a job starts in, forked by a job server
FORK_SECONDS = 0.2
# rules whose jobs are estimated, beside `train`
ESTIMATED = ("dataset", "cache", "prototypes", "block_accuracy", "artefact")


@dataclass(frozen=True)
class StudyCost:
    """Jobs, operations, hours and disk of a study; existing results are not taken off."""

    # runs, each trained from a seed, and trials before them, to choose options (study.tune)
    runs: int
    trials: int
    # the number of jobs by rule
    jobs: dict[str, int]
    # floating-point operations
    operations: float
    # seconds of one core, for work that no GPU does, start-up included
    seconds: float
    # operations of the longest chain of jobs of one run
    longest: float
    # megabytes of images and caches, by kind
    disk: dict[str, float]
    precision: str

    def gpu_hours(self, rate: float | None = None) -> float:
        """Return hours of one GPU at a rate in operations per second; default: RATES."""
        rate = rate or RATES[self.precision]
        return self.operations / rate / 3600


def study_cost(plan: Plan) -> StudyCost:
    """Return what a study costs."""
    settings = plan.settings
    trials = trial_runs(plan.settings)
    jobs = jobs_of_study(plan)

    # the work of jobs before and after training, and of training
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
    """Return the seconds of one core that a study's jobs take, by rule and file, if estimated."""

    jobs = jobs_of_study(plan)
    found = dict[str, dict[Path, float]]()
    for rule in (*ESTIMATED, "train"):
        seconds = dict[Path, float]()
        for file, labels in jobs[rule].items():
            work = estimate_job(plan.settings, rule, labels)
            seconds[file] = FORK_SECONDS + work.seconds + work.operations / RATE

        # a rule without jobs is left out
        if seconds:
            found[rule] = seconds
    return found


def _disk(settings: Settings, jobs: Jobs) -> dict[str, float]:
    """Return megabytes of images and of their caches, by kind."""
    datasets = settings.datasets
    megabytes = defaultdict[str, float](float)
    for job in jobs["dataset"].values():
        megabytes["images"] += image_megabytes(datasets[job.dataset])
    for job in jobs["cache"].values():
        size = sizes(settings.backbones[job.backbone])

        # the class token at the input of every block and at the end, in float32
        rows: float = size.depth + 1
        # or all tokens at the end, in half the bytes
        if job.cache == "patches":
            rows = size.tokens / 2
        megabytes[job.cache] += contents(datasets[job.dataset]).images * rows * size.width * FLOAT
    return dict(megabytes)
