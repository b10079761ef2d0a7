"""Define what rules share: wildcards, and the command, parameters and estimates of their jobs.

A large input is marked `ancient`, so that Snakemake does not compare its time. The receipt beside it
is an input, too, and Snakemake compares the checksum of that.
"""

from functools import cache

from snakemake.settings.enums import RerunTrigger

from fedloom.planning import job_receipts
from fedloom.planning import run_progress


wildcard_constraints:
    dataset="[^/]+",
    partition="[^/]+",
    backbone="[^/]+",
    method="[^/]+",
    seed=r"\d+",
    end=r"(?!0000)\d{4}",
    label="[^/]+",
    artefact="[^/]+",
    cache="features|patches",


GPU = min(GPUS, 1)  # the number of GPUs of a job that can use one


def job_command(rule, gpu=False):
    """Return the shell command of a rule. It runs workflow/fedloom/jobs/<rule>_job.py in a separate
    process. `params.job` holds the job, from which the paths of its files follow. If the job can use
    a GPU, `resources.gpu` says whether to take one."""
    asks = f"{gpus.ASKED}={{resources.gpu}} " if gpu else ""
    job = f"python -m fedloom.jobs.server {rule} --job {{params.job:q}}"
    limits = "--threads {threads} --memory {resources.mem_mb}"
    return f"{asks}{job} --sources {{params.sources}} {limits} --log {{log}}"


def job_of(rule):
    """Return a function for `params`, which returns the rule's job as canonical JSON. The JSON has
    all settings that the job's result depends on (fedloom.planning.job_specs)."""
    return lambda wildcards: to_json(PLAN.job(rule, wildcards))


def sources_of(rule):
    """Return a function for `params`, which returns the digest of the source files that the rule's
    job depends on. The files are not inputs, for two reasons: every job would have some hundred of
    them, and Snakemake records the checksum of an input when the job ends, which may be after an
    edit. A job of `train` contains this digest, too."""
    return lambda wildcards: PLAN.sources(rule, PLAN.job(rule, wildcards))


def estimated(resource, rule):
    """Return a function for `resources`, which returns `mem_mb` (in MB) or `runtime` (in minutes).
    Both are estimated from the rule's job and its attempt. If the job has a GPU, activations need no
    memory of the host."""
    given = workflow.resource_settings.overwrite_resources.get(rule, {}).get("gpu")
    on_gpu = (GPU if given is None else given) != 0
    return lambda wildcards, attempt: getattr(
        PLAN.resources(rule, wildcards, attempt, on_gpu), resource
    )


def if_needed(name, pattern):
    """Return a function for `input`, which returns a file if the run's method needs it (`needs` in
    method.toml), and else no file."""
    return lambda wildcards: pattern if name in PLAN.run_inputs(wildcards) else []


def if_tuned(pattern):
    """Return a function for `input`, which returns a file if the options of the run's method are
    tuned, and else no file."""
    return lambda wildcards: pattern if PLAN.choice_file(wildcards) else []


@cache
def make_stale_results_again():
    """Tell Snakemake to make stale results again: their receipts name other settings, sources or
    data. Snakemake's own records in .snakemake are not enough, as they may be missing, or belong to
    another folder. With `--rerun-triggers mtime`, stale results are kept, and a line says so.
    """
    stale = job_receipts.stale(PLAN)
    again = RerunTrigger.PARAMS in workflow.rerun_triggers
    if again:
        workflow.dag.forcefiles.update(map(str, stale))
    if stale:
        run_progress.tell(job_receipts.note(stale.values(), again))


def compare_receipts(wildcards):
    """Return no file, but look for stale results. This is an input of some rules, and every study
    has a job of one of these. Snakemake calls it while it collects the jobs, before it decides
    which of them are to run."""
    if workflow.is_main_process:
        make_stale_results_again()
    return []
