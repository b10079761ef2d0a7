"""Run a study's jobs in one process, then make its report.

    python tests/support/one_process.py [study.yaml]        (in a checkout)

Snakemake starts an interpreter for every job, and each imports torch: a study of seconds then takes
minutes. The workflow itself is tested in test_workflow.py.
"""

import importlib
import sys
from itertools import product
from pathlib import Path

from fedloom.config.protocols import job_ends
from fedloom.config.settings import VALIDATION
from fedloom.planning import paths
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Wildcards
from fedloom.report import page


def run(rule: str, job: object) -> None:
    """Run a job as `python -m fedloom.jobs <rule>` does."""
    importlib.import_module(f"fedloom.jobs.{rule}_job").run_job(job, threads=1)


def train(plan: Plan, scenario: Wildcards, method: str, artefacts: set[str]) -> None:
    """Train and evaluate a run, and compute those of the artefacts that its method gives."""
    chosen = Wildcards(**vars(scenario), method=method)
    for number in job_ends(plan.study(chosen)):
        run("train", plan.job("train", Wildcards(**vars(chosen), end=paths.four_digits(number))))
    run("evaluate", plan.job("evaluate", chosen))
    for artefact in artefacts & set(plan.settings.methods[method].artefacts):
        run("artefact", plan.job("artefact", Wildcards(**vars(chosen), artefact=artefact)))


def tune(plan: Plan, scenario: Wildcards) -> None:
    """Train the trials of a study in a scenario, and choose each method's options."""
    settings = plan.settings
    if settings.study.tune is None:
        return
    on_trials = {"partition": scenario.partition + VALIDATION, "seed": settings.study.tune.seed}
    trials = Wildcards(**vars(scenario) | on_trials)
    run("partition", plan.job("partition", trials))
    run("prototypes", plan.job("prototypes", trials))
    for method in settings.select.methods:
        for trial in settings.trials[method]:
            train(plan, trials, trial.label, artefacts=set())
        run("choose", plan.job("choose", Wildcards(**vars(scenario), method=method)))


def run_all(plan: Plan) -> None:
    """Run every job of a study of ViTs, in an order in which each finds its inputs."""
    select = plan.settings.select
    seeds = plan.settings.study.seeds
    figures = [plan.figure_job(label) for label in select.figures]
    artefacts = {job.shown.artefact for job in figures if job.shown and job.shown.artefact}
    for dataset in select.datasets:
        run("dataset", plan.job("dataset", Wildcards(dataset=dataset)))
    for dataset, backbone in product(select.datasets, select.backbones):
        chosen = Wildcards(dataset=dataset, backbone=backbone, cache="features")
        run("cache", plan.job("cache", chosen))
        run("block_accuracy", plan.job("block_accuracy", chosen))
    for dataset, partition, backbone in product(
        select.datasets, select.partitions, select.backbones
    ):
        tune(plan, Wildcards(dataset=dataset, partition=partition, backbone=backbone))
    for dataset, partition, seed in product(select.datasets, select.partitions, seeds):
        chosen = Wildcards(dataset=dataset, partition=partition, seed=seed)
        run("partition", plan.job("partition", chosen))
        if seed == seeds[0]:
            run("partition_chart", plan.job("partition_chart", chosen))
        for backbone in select.backbones:
            scenario = Wildcards(**vars(chosen), backbone=backbone)
            run("prototypes", plan.job("prototypes", scenario))
            for method in select.methods:
                train(plan, scenario, method, artefacts)
    for label in select.tables:
        run("table", plan.job("table", Wildcards(label=label)))
    for job in figures:
        run("figure", job)


if __name__ == "__main__":
    files = sys.argv[1:]
    plan = load_plan([Path(file) for file in files])
    run_all(plan)
    print(f"report  {page.write_page(plan)}")
