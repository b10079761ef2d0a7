"""List all jobs of a study, without asking Snakemake."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from fedloom.config.protocols import job_ends
from fedloom.planning import paths
from fedloom.planning.job_specs import PlotInputs
from fedloom.planning.output_runs import backbone_labels, shown_runs
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run, Wildcards
from fedloom.planning.runs import trial_runs, trials_of_one_run
from fedloom.planning.settings_of_run import study_of_run, transfer_targets, trials_of_run

# for each rule, maps the first file of each job to the job's labels
Jobs = defaultdict[str, dict[Path, Wildcards]]


def jobs_of_study(plan: Plan) -> Jobs:
    """Return all jobs of a study: for each rule, the labels of each job by its first file."""
    settings = plan.settings
    jobs = Jobs(dict)
    for run in (*plan.runs, *trial_runs(settings)):
        _add_run(jobs, plan, run)

    # the jobs that runs of all seeds share: a chart of the partition, and the choice of options
    for run in plan.runs:
        labels = vars(run) | {"seed": settings.study.seeds[0]}
        _add(jobs, "partition", paths.PARTITION, **labels)
        _add(jobs, "partition_chart", paths.PARTITION_CHART, **labels)
        if trials_of_run(settings, run):
            _add(jobs, "choose", paths.CHOICE, **labels)

    for label in settings.select.tables:
        _add(jobs, "table", paths.TABLE, study=plan.name, label=label)
    for label in settings.select.figures:
        _add(jobs, "figure", paths.FIGURE, study=plan.name, label=label)

    # the jobs that make what tables and figures read beside the evaluations of runs
    tables = [plan.table_job(label) for label in settings.select.tables]
    figures = [plan.figure_job(label) for label in settings.select.figures]
    for output in (*tables, *figures):
        if output.shown is not None:
            _add_shown(jobs, plan, output.shown)
        _add_backbones(jobs, getattr(output, "backbones", ()))
    return jobs


def jobs_before_training(plan: Plan, run: Run) -> Jobs:
    """Return the jobs that must end before a run trains, in an order in which they can run.

    They make the run's data. If the run's options are tuned, they also train its trials, and choose
    among them.
    """
    jobs = Jobs(dict)
    trials = trials_of_one_run(plan.settings, run)
    for each in (*trials, run):
        _add_data(jobs, plan, each)

    for trial in trials:
        _add_training(jobs, plan, trial)
    if trials:
        _add(jobs, "choose", paths.CHOICE, **vars(run))
    return jobs


def _add(jobs: Jobs, rule: str, pattern: str, **labels: object) -> None:
    """Add a job of a rule, which makes the file of a pattern; a job may be added several times."""
    jobs[rule][paths.path_for(pattern, **labels)] = Wildcards(**labels)


def _add_run(jobs: Jobs, plan: Plan, run: Run) -> None:
    """Add the jobs of a run or trial, and those that make its data."""
    _add_data(jobs, plan, run)
    _add_training(jobs, plan, run)


def _add_data(jobs: Jobs, plan: Plan, run: Run) -> None:
    """Add the jobs that make the data of a run or trial."""
    labels = vars(run)
    reads = plan.run_inputs(run)
    _add(jobs, "dataset", paths.STORE, **labels)
    _add(jobs, "partition", paths.PARTITION, **labels)

    # prototypes are made from features
    if reads.keys() & {"features", "prototypes"}:
        _add(jobs, "cache", paths.CACHE, **labels, cache="features")
    if "patches" in reads:
        _add(jobs, "cache", paths.CACHE, **labels, cache="patches")
    if "prototypes" in reads:
        _add(jobs, "prototypes", paths.PROTOTYPES, **labels)


def _add_training(jobs: Jobs, plan: Plan, run: Run) -> None:
    """Add the jobs that train a run or trial, and join its tables."""
    labels = vars(run)
    for end in job_ends(study_of_run(plan.settings, run)):
        _add(jobs, "train", paths.STATE, **labels, end=paths.four_digits(end))
    _add(jobs, "evaluate", paths.EVALUATION, **labels)


def _add_shown(jobs: Jobs, plan: Plan, shown: PlotInputs) -> None:
    """Add the jobs that make the artefacts of shown runs, and the data of other datasets."""
    for run in (each.run for each in shown_runs(shown)):
        if shown.artefact:
            labels = vars(run)
            _add(jobs, "artefact", paths.ARTEFACT, **labels, artefact=shown.artefact)

        caches = {"features", "patches"} & plan.run_inputs(run).keys()
        for name in transfer_targets(plan.settings, run):
            _add(jobs, "dataset", paths.STORE, dataset=name)
            for cache in caches:
                labels = {"dataset": name, "backbone": run.backbone, "cache": cache}
                _add(jobs, "cache", paths.CACHE, **labels)


def _add_backbones(jobs: Jobs, pairs: Iterable[str]) -> None:
    """Add the jobs that measure frozen backbones; each pair is "dataset/backbone"."""
    for pair in pairs:
        labels = backbone_labels(pair)
        _add(jobs, "cache", paths.CACHE, **labels, cache="features")
        _add(jobs, "block_accuracy", paths.BLOCK_ACCURACY, **labels)
