"""What rules share: wildcards, and the one command that every job is."""

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


def stage(name, gpu=False):
    """The command of a rule: its job is described by `params.job`, its files follow from that. One
    that can use a GPU learns from `resources.gpu` whether to take one."""
    asks = f"{gpus.ASKED}={{resources.gpu}} " if gpu else ""
    job = f"python -m fedloom.jobs.server {name} --job {{params.job:q}}"
    limits = "--threads {threads} --memory {resources.mem_mb}"
    return f"{asks}{job} --sources {{params.sources}} {limits} --log {{log}}"


def described(rule):
    """The parameters of a rule: its job as canonical JSON, and the digest of its source files. As
    inputs these would be some hundred paths of every job, and Snakemake keeps an input's checksum
    when the job ends, which may be after an edit. That of `train` has the digest in its job too.
    """
    return {
        "job": lambda w: to_json(PLAN.job(rule, w)),
        "sources": lambda w: PLAN.sources(rule, PLAN.job(rule, w)),
    }


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


def compared(wildcards):
    """Input function: no file, of rules of which every study has one. Snakemake calls it while it
    draws up the jobs, before it asks which of them are to run."""
    if workflow.is_main_process:
        make_stale_results_again()
    return []


def requested(rule):
    """The resources of a rule, estimated from its job and the attempt. With a GPU, its activations need
    no memory of the host."""
    given = workflow.resource_settings.overwrite_resources.get(rule, {}).get("gpu")
    on_gpu = (GPU if given is None else given) != 0

    def request(name):
        return lambda wildcards, attempt: getattr(
            PLAN.resources(rule, wildcards, attempt, on_gpu), name
        )

    return {name: request(name) for name in ("mem_mb", "runtime")}


def data_of(rule):
    """The data files that a rule before the runs reads, which are ancient, since Snakemake would
    compare the times of large files, and their receipts, whose checksums it compares.
    """
    patterns = {name: paths.DATA[name] for name in paths.INPUTS[rule]}
    receipts = {
        f"{name}_receipt": paths.receipt(file) for name, file in patterns.items()
    }
    return {name: ancient(file) for name, file in patterns.items()} | receipts


def data_of_run(wildcards):
    """Input function: the data files that a run reads, or an artefact of one."""
    others = PLAN.other_inputs(wildcards) if hasattr(wildcards, "artefact") else []
    return list(map(str, [*PLAN.run_inputs(wildcards).values(), *others]))


def tables_of_jobs(name):
    """Input function: a table of every job of a run."""
    return lambda w: PLAN.job_files(w, paths.JOB_TABLES[name])


# What `train` and `artefact` read, see `data_of`.
RUN_INPUTS = {
    "data": ancient(data_of_run),
    "receipts": lambda w: list(map(paths.receipt, data_of_run(w))),
    "weights": ancient(PLAN.weights),
    "choice": PLAN.choice,
}
