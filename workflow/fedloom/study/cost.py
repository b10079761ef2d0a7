"""What a study costs before it runs: jobs, operations, hours and disk.

It is an estimate, made of fedloom.study.work, and too large rather than too small. Hours of a GPU
follow from a rate of operations that is stated, not measured (RATES); those of a core from the rate
in fedloom.study.resources, which is measured. What has been computed already is not taken off.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedloom.config.rounds import evaluated_rounds, job_ends, sampled_rounds
from fedloom.config.settings import VALIDATION
from fedloom.study import paths, work
from fedloom.study.backbone_sizes import sizes
from fedloom.study.plan import Plan
from fedloom.study.plot_inputs import ShownRun, shown_runs
from fedloom.study.resources import RATE
from fedloom.study.runs import Run
from fedloom.study.work import Work, contents

# operations per second of a data-centre GPU, assumed: half to two thirds of what an H100 can do in
# float32 (67 tera), a third in the two others (494 and 989)
RATES = {"float32": 4e13, "tf32": 1.6e14, "bf16": 3e14}
START_UP = 5.0  # seconds of the imports of a job that has no job server to share them with
FORK = 0.2  # seconds that a job starts in that has one
FEATURE = 4  # bytes of a cached number; patches are kept in half of it
ESTIMATED = ("dataset", "cache", "prototypes", "block_accuracy", "artefact")  # without training
NEEDS = ("features", "patches", "prototypes")
UNKNOWN_SIDE = 64  # pixels; images that need no image_size are of one size, which is a small one


@dataclass(frozen=True)
class Cost:
    """What a study takes from nothing to its tables.

    Attributes:
        runs, trials: trained from a seed, and before them to choose options (study.tune).
        jobs: by rule.
        operations: of floating point.
        seconds: of one core, for what no GPU does, start-up included.
        longest: operations of the longest chain of jobs of one run.
        disk: megabytes, by what is stored.
        precision: the study's.
    """

    runs: int
    trials: int
    jobs: dict[str, int]
    operations: float
    seconds: float
    longest: float
    disk: dict[str, float]
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


def _trials(plan: Plan, run: Run) -> Iterator[Run]:
    """Yield the runs of a run's trials."""
    tune = plan.settings.study.tune
    for trial in plan.trials_of(run):
        assert tune is not None
        partition = run.partition + VALIDATION
        yield replace(run, partition=partition, method=trial.label, seed=tune.seed)


def _jobs(plan: Plan, finals: list[Run], every: list[Run]) -> dict[str, set[_Job]]:
    """Return the jobs by rule."""
    select, first = plan.settings.select, plan.settings.study.seeds[0]
    tables, figures = ({_Job(label=x) for x in each} for each in (select.tables, select.figures))
    shown = [plan.table_job(table) for table in tables]
    drawn = [plan.figure_job(figure) for figure in figures]
    pairs = {
        _Job(dataset, backbone)
        for job in drawn
        for dataset, backbone in (pair.split("/") for pair in job.backbones)
    }
    artefacts = {
        replace(_of_run(run), artefact=run.artefact.stem)
        for job in (*shown, *drawn)
        if job.shown is not None
        for run in shown_runs(job.shown)
        if run.artefact is not None
    }
    reads = {run: plan.run_inputs(run) for run in every}
    needs = {need: [run for run in every if need in reads[run]] for need in NEEDS}
    of_tokens = [*needs["features"], *needs["prototypes"], *pairs]
    scenarios = {_Job(run.dataset, partition=run.partition, seed=first) for run in finals}
    return {
        "dataset": {_Job(run.dataset) for run in every},
        "partition": scenarios
        | {_Job(r.dataset, partition=r.partition, seed=r.seed) for r in every},
        "partition_chart": scenarios,
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
        "artefact": artefacts,
        "table": tables,
        "figure": figures,
    }


def _of_run(run: Run | ShownRun) -> _Job:
    """Return the wildcards of a run."""
    return _Job(run.dataset, run.backbone, run.partition, run.method, run.seed)


def _training(plan: Plan, run: Run) -> Work:
    """Return what all jobs of a run take together."""
    study = plan.study(run)
    rounds, evaluations = study.rounds, (len(evaluated_rounds(study)), len(sampled_rounds(study)))
    labels = (run.method, *(trial.label for trial in plan.trials_of(run)))
    each = [work.of_training(plan.workload(run, m), rounds, *evaluations) for m in labels]
    return max(each, key=lambda one: one.operations)


def _disk(plan: Plan, jobs: dict[str, set[_Job]]) -> dict[str, float]:
    """Return megabytes of images and of what is cached of them, by kind."""
    datasets, backbones = plan.settings.datasets, plan.settings.backbones
    megabytes: defaultdict[str, float] = defaultdict(float)
    for job in jobs["dataset"]:
        images, _ = contents(datasets[job.dataset])
        side = datasets[job.dataset].settings.get("image_size", UNKNOWN_SIDE)
        megabytes["images"] += images * side**2 * 3 / 1e6
    for job in jobs["cache"]:
        (images, _), size = contents(datasets[job.dataset]), sizes(backbones[job.backbone])
        rows = size.depth + 1 if job.cache == "features" else size.tokens / 2
        megabytes[job.cache] += images * rows * size.width * FEATURE / 1e6
    return dict(megabytes)
