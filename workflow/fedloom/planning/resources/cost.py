"""What a study costs from nothing to its tables: an estimate, too large rather than too small."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.config.settings import Settings
from fedloom.planning.plan import Plan
from fedloom.planning.resources.backbone_sizes import FLOAT, sizes
from fedloom.planning.resources.estimates import RATE, contents, image_megabytes, of_job, of_run
from fedloom.planning.runs import trial_runs
from fedloom.planning.study_jobs import Jobs, jobs_of_study

# operations per second of a data-centre GPU, assumed: half to two thirds of what an H100 can do in
# float32 (67 tera), a third in the two others (494 and 989)
RATES = {"float32": 4e13, "tf32": 1.6e14, "bf16": 3e14}
FORK = 0.2  # seconds that a job starts in, forked by a job server
ESTIMATED = ("dataset", "cache", "prototypes", "block_accuracy", "artefact")  # without training


@dataclass(frozen=True)
class Cost:
    """Jobs, operations, hours and disk of a study; existing results are not taken off."""

    runs: int  # trained from a seed
    trials: int  # trained before them, to choose options (study.tune)
    jobs: dict[str, int]  # by rule
    operations: float  # of floating point
    seconds: float  # of one core, for work that no GPU does, start-up included
    longest: float  # operations of the longest chain of jobs of one run
    disk: dict[str, float]  # megabytes of images and caches, by kind
    precision: str

    def gpu_hours(self, rate: float | None = None) -> float:
        """Return hours of one GPU at a rate in operations per second; default: RATES."""
        return self.operations / (rate or RATES[self.precision]) / 3600


def study_cost(plan: Plan) -> Cost:
    """Return what a study costs."""
    settings = plan.settings
    trials = trial_runs(plan.settings)
    jobs = jobs_of_study(plan)

    # the work of jobs before the runs, and of the runs
    takes = [of_job(settings, rule, job) for rule in ESTIMATED for job in jobs[rule].values()]
    trained = [of_run(settings, run) for run in (*plan.runs, *trials)]
    count = {rule: len(found) for rule, found in jobs.items() if found}

    return Cost(
        runs=len(plan.runs),
        trials=len(trials),
        jobs=count,
        operations=sum(each.operations for each in (*takes, *trained)),
        seconds=sum(each.seconds for each in takes) + FORK * sum(count.values()),
        longest=max((each.operations for each in trained), default=0.0),
        disk=_disk(settings, jobs),
        precision=settings.study.precision,
    )


def job_seconds(plan: Plan) -> dict[str, dict[Path, float]]:
    """Return the seconds of one core that a study's jobs take, by rule and file, if estimated."""

    def seconds(rule: str, labels: Any) -> float:
        work = of_job(plan.settings, rule, labels)
        return FORK + work.seconds + work.operations / RATE

    jobs = jobs_of_study(plan)
    rules = [rule for rule in (*ESTIMATED, "train") if jobs[rule]]
    return {rule: {file: seconds(rule, w) for file, w in jobs[rule].items()} for rule in rules}


def _disk(settings: Settings, jobs: Jobs) -> dict[str, float]:
    """Return megabytes of images and of their caches, by kind."""
    datasets = settings.datasets
    megabytes = defaultdict[str, float](float)
    for job in jobs["dataset"].values():
        megabytes["images"] += image_megabytes(datasets[job.dataset])
    for job in jobs["cache"].values():
        size = sizes(settings.backbones[job.backbone])
        rows = size.depth + 1 if job.cache == "features" else size.tokens / 2  # of half the bytes
        megabytes[job.cache] += contents(datasets[job.dataset]).images * rows * size.width * FLOAT
    return dict(megabytes)
