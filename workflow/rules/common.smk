"""What rules share: wildcards, and the command, parameters and estimates of their jobs.

A large file is `ancient`, since Snakemake would compare its time; the receipt beside it, whose
checksum Snakemake compares, is the input that counts.
"""

from functools import cache

from snakemake.settings.enums import RerunTrigger

from fedloom.cli.run import run_progress
from fedloom.planning import job_receipts


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


GPU = min(GPUS, 1)  # of a rule that can use one


def job_command(rule, gpu=False):
    """Return the shell command of a rule, which runs workflow/fedloom/jobs/<rule>_job.py in a
    separate process. The job is in `params.job`, and its files follow from that. A job that can use
    a GPU learns from `resources.gpu` whether to take one."""
    asks = f"{gpus.ASKED}={{resources.gpu}} " if gpu else ""
    job = f"python -m fedloom.jobs.server {rule} --job {{params.job:q}}"
    limits = "--threads {threads} --memory {resources.mem_mb}"
    return f"{asks}{job} --sources {{params.sources}} {limits} --log {{log}}"


def job_of(rule):
    """Return a function for `params`: the rule's job as canonical JSON, which has all settings that
    the result depends on (fedloom.planning.job_specs)."""
    return lambda wildcards: to_json(PLAN.job(rule, wildcards))


def sources_of(rule):
    """Return a function for `params`: the digest of the source files that the rule's job depends
    on. As inputs these would be some hundred paths of every job, and Snakemake keeps an input's
    checksum when the job ends, which may be after an edit. That of `train` has the digest in its
    job too."""
    return lambda wildcards: PLAN.sources(rule, PLAN.job(rule, wildcards))


def estimated(resource, rule):
    """Return a function for `resources`: `mem_mb` or `runtime`, estimated from the rule's job and
    the attempt. With a GPU, its activations need no memory of the host."""
    given = workflow.resource_settings.overwrite_resources.get(rule, {}).get("gpu")
    on_gpu = (GPU if given is None else given) != 0
    return lambda wildcards, attempt: getattr(
        PLAN.resources(rule, wildcards, attempt, on_gpu), resource
    )


def if_needed(name, pattern):
    """Return a function for `input`: a file, if the run's method needs it (see method.toml)."""
    return lambda wildcards: pattern if name in PLAN.run_inputs(wildcards) else []


def if_tuned(pattern):
    """Return a function for `input`: a file, if the options of the run's method are tuned."""
    return lambda wildcards: pattern if PLAN.choice(wildcards) else []


@cache
def make_stale_results_again():
    """Have results made again whose receipts name other settings, sources or data: Snakemake's
    records in .snakemake may be missing, or those of another folder. With `--rerun-triggers mtime`
    they are kept, and a line says so."""
    stale = job_receipts.stale(PLAN)
    again = RerunTrigger.PARAMS in workflow.rerun_triggers
    if again:
        workflow.dag.forcefiles.update(map(str, stale))
    if stale:
        run_progress.tell(job_receipts.note(stale.values(), again))


def compare_receipts(wildcards):
    """Return no file, as an input of rules of which every study has one. Snakemake calls this
    while it draws up the jobs, before it asks which of them are to run."""
    if workflow.is_main_process:
        make_stale_results_again()
    return []
