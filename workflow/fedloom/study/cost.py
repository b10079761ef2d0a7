"""What a study costs before it runs: jobs, operations, hours and disk.

It is an estimate, made of fedloom.study.resources, and too large rather than too small. Hours of a
GPU follow from a rate of operations that is stated, not measured (RATES). Existing results are not
taken off.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

from fedloom.config.rounds import evaluated_rounds, job_ends, sampled_rounds
from fedloom.config.settings import VALIDATION
from fedloom.study import paths
from fedloom.study.backbone_sizes import sizes
from fedloom.study.plan import Plan
from fedloom.study.plot_inputs import ShownRun, shown_runs
from fedloom.study.resources import RATE, UNKNOWN_SIDE, Work, contents
from fedloom.study.runs import Run

# operations per second of a data-centre GPU, assumed: half to two thirds of what an H100 can do in
# float32 (67 tera), a third in the two others (494 and 989)
RATES = {"float32": 4e13, "tf32": 1.6e14, "bf16": 3e14}
START_UP = 5.0  # seconds of the imports of a job that has no job server to share them with
FORK = 0.2  # seconds that a job starts in that has one
FEATURE = 4  # bytes of a cached number; patches are kept in half of it
ESTIMATED = ("dataset", "cache", "prototypes", "block_accuracy", "artefact")  # without training


@dataclass(frozen=True)
class Cost:
    """What a study takes from nothing to its tables."""

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

    def core_hours(self) -> float:
        """Return hours of one core, without a GPU."""
        return (self.operations / RATE + self.seconds) / 3600

    def start_up_share(self, rate: float) -> float:
        """Return the share of a training job's time, on average, that is its start-up.

        It is that of a job alone, as on a cluster; jobs of one machine share it.
        """
        jobs = self.jobs["train"]
        return START_UP * jobs / (START_UP * jobs + self.operations / rate) if jobs else 0.0


def study_cost(plan: Plan) -> Cost:
    """Return what a study costs."""
    finals = plan.runs
    every = [*finals, *sorted({trial for run in finals for trial in _trials(plan, run)})]
    jobs = _jobs(plan, finals, every)
    takes = [plan.work(rule, job) for rule in ESTIMATED for job in jobs[rule]]
    trained = [_training(plan, run) for run in every]
    count = {rule: len(found) for rule, found in jobs.items() if found}
    return Cost(
        runs=len(finals),
        trials=len(every) - len(finals),
        jobs=count,
        operations=sum(each.operations for each in (*takes, *trained)),
        seconds=sum(each.seconds for each in takes) + FORK * sum(count.values()),
        longest=max((each.operations for each in trained), default=0.0),
        disk=_disk(plan, jobs),
        precision=plan.settings.study.precision,
    )


@dataclass(frozen=True)
class _Job:
    """The wildcards of a job; those that its rule does not have are empty."""

    dataset: str = ""
    backbone: str = ""
    partition: str = ""
    method: str = ""
    seed: int = 0
    cache: str = ""
    artefact: str = ""
    end: str = ""
    label: str = ""


def _trials(plan: Plan, run: Run) -> list[Run]:
    """Return the runs of a run's trials."""
    tune, partition = plan.settings.study.tune, run.partition + VALIDATION
    return [
        replace(run, partition=partition, method=trial.label, seed=tune.seed)
        for trial in plan.trials_of(run)
        if tune
    ]


def _jobs(plan: Plan, finals: list[Run], every: list[Run]) -> dict[str, set[_Job]]:
    """Return the jobs by rule."""
    select, first = plan.settings.select, plan.settings.study.seeds[0]
    tables, figures = ({_Job(label=x) for x in each} for each in (select.tables, select.figures))
    outputs = [*map(plan.table_job, tables), *map(plan.figure_job, figures)]
    pairs = {
        _Job(dataset, backbone)
        for figure in map(plan.figure_job, figures)
        for dataset, backbone in (pair.split("/") for pair in figure.backbones)
    }
    shown = [run for job in outputs if job.shown is not None for run in shown_runs(job.shown)]
    reads = {run: plan.run_inputs(run) for run in every}
    needs = {
        need: [run for run in every if need in reads[run]]
        for need in ("features", "patches", "prototypes")
    }
    of_tokens = [*needs["features"], *needs["prototypes"], *pairs]
    charts = {_Job(run.dataset, partition=run.partition, seed=first) for run in finals}
    divided = {_Job(run.dataset, partition=run.partition, seed=run.seed) for run in every}
    return {
        "dataset": {_Job(run.dataset) for run in every},
        "partition": charts | divided,
        "partition_chart": charts,
        "cache": {_Job(each.dataset, each.backbone, cache="features") for each in of_tokens}
        | {_Job(run.dataset, run.backbone, cache="patches") for run in needs["patches"]},
        "prototypes": {
            _Job(run.dataset, run.backbone, run.partition, seed=run.seed)
            for run in needs["prototypes"]
        },
        "block_accuracy": pairs,
        "train": {
            replace(_of_run(run), end=paths.end(end))
            for run in every
            for end in job_ends(plan.study(run))
        },
        "choose": {
            _Job(run.dataset, run.backbone, run.partition, run.method)
            for run in finals
            if plan.trials_of(run)
        },
        "evaluate": {_of_run(run) for run in every},
        "artefact": {
            replace(_of_run(run), artefact=run.artefact.stem) for run in shown if run.artefact
        },
        "table": tables,
        "figure": figures,
    }


def _of_run(run: Run | ShownRun) -> _Job:
    """Return the wildcards of a run."""
    return _Job(run.dataset, run.backbone, run.partition, run.method, run.seed)


def _training(plan: Plan, run: Run) -> Work:
    """Return what all jobs of a run take together."""
    study = plan.study(run)
    evaluations = len(evaluated_rounds(study)), len(sampled_rounds(study))
    return plan.training_work(run, study.rounds, *evaluations)


def _disk(plan: Plan, jobs: dict[str, set[_Job]]) -> dict[str, float]:
    """Return megabytes of images and of their caches, by kind."""
    datasets, backbones = plan.settings.datasets, plan.settings.backbones
    megabytes: defaultdict[str, float] = defaultdict(float)
    for job in jobs["dataset"]:
        side = datasets[job.dataset].settings.get("image_size", UNKNOWN_SIDE)
        megabytes["images"] += contents(datasets[job.dataset]).images * side**2 * 3 / 1e6
    for job in jobs["cache"]:
        images, size = contents(datasets[job.dataset]).images, sizes(backbones[job.backbone])
        rows = size.depth + 1 if job.cache == "features" else size.tokens / 2
        megabytes[job.cache] += images * rows * size.width * FEATURE / 1e6
    return dict(megabytes)
