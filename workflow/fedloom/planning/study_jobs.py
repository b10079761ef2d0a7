"""All jobs of a study, without asking Snakemake."""

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedloom.config.protocols import job_ends
from fedloom.planning import paths
from fedloom.planning.job_factory import study_of_run, transferred_to, trials_of
from fedloom.planning.output_runs import plotted_runs
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run
from fedloom.planning.runs import trial_runs

Jobs = defaultdict[str, dict[Path, Any]]


def jobs_of_study(plan: Plan) -> Jobs:
    """Return the jobs by rule: the labels of each by the file that it makes."""
    settings = plan.settings
    jobs = Jobs(dict)

    def add(rule: str, pattern: str, **labels: Any) -> None:
        jobs[rule][paths.path_for(pattern, **labels)] = SimpleNamespace(**labels)

    for run in (*plan.runs, *trial_runs(settings)):
        labels = vars(run)
        reads = plan.run_inputs(run)
        add("dataset", paths.STORE, **labels)
        add("partition", paths.PARTITION, **labels)
        if "prototypes" in reads:
            add("prototypes", paths.PROTOTYPES, **labels)
        for name in reads.keys() & {"features", "prototypes", "patches"}:
            cache = "patches" if name == "patches" else "features"
            add("cache", paths.CACHE, **labels, cache=cache)
        for end in job_ends(study_of_run(settings, run)):
            add("train", paths.STATE, **labels, end=paths.end(end))
        add("evaluate", paths.EVALUATION, **labels)
    for run in plan.runs:
        labels = vars(run) | {"seed": settings.study.seeds[0]}
        add("partition", paths.PARTITION, **labels)
        add("partition_chart", paths.PARTITION_CHART, **labels)
        if trials_of(settings, run):
            add("choose", paths.CHOICE, **labels)
    for rule, pattern in (("table", paths.TABLE), ("figure", paths.FIGURE)):
        for label in getattr(settings.select, f"{rule}s"):
            add(rule, pattern, study=plan.name, label=label)
    outputs = [plan.job(rule, each) for rule in ("table", "figure") for each in jobs[rule].values()]
    for output in outputs:
        shown = output.shown
        for run in plotted_runs(shown) if shown is not None else ():
            if shown is not None and shown.artefact:
                add(
                    "artefact",
                    paths.ARTEFACT,
                    **vars(Run.of(run)),
                    artefact=shown.artefact,
                )
            for name in transferred_to(settings, run):
                add("dataset", paths.STORE, dataset=name)
                for cache in {"features", "patches"} & plan.run_inputs(run).keys():
                    labels = {"dataset": name, "backbone": run.backbone, "cache": cache}
                    add("cache", paths.CACHE, **labels)
        for pair in getattr(output, "backbones", ()):
            dataset, backbone = pair.split("/")
            add("cache", paths.CACHE, dataset=dataset, backbone=backbone, cache="features")
            add("block_accuracy", paths.BLOCK_ACCURACY, dataset=dataset, backbone=backbone)
    return jobs
