import os
import secrets
import signal
import sys
import time
from pathlib import Path

from snakemake.settings.types import DeploymentMethod

ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True))
sys.path.insert(0, str(ROOT / "workflow"))

from fedloom.machine import gpus
from fedloom.planning.load_plan import LAUNCHER, load_plan
from fedloom.machine.install import in_shell
from fedloom.machine.exits import one_line_errors
from fedloom.jobs.server import VARIABLE
from fedloom.planning import paths
from fedloom.planning.job_specs import to_json
from fedloom.planning.records import failures, summary_of_results, write_record

STARTED = time.time()
with one_line_errors():
    PLAN = load_plan(workflow.overwrite_configfiles, workflow.config_settings.config)

# A scheduler's SIGUSR1 ahead of a time limit reaches every process of a job, and would end Snakemake and
# its shells. They ignore it, and so do the processes that they start, which inherit this; only training
# handles it.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)

# On a machine's own GPUs, a job that can use a GPU gets one, and no other job has it, unless
# --set-resources says otherwise. Schedulers of clusters are told what to give.
with one_line_errors():
    own = workflow.local_exec and workflow.is_main_process
    GPUS = len(gpus.visible()) if own else 0
if GPUS:
    workflow.global_resources.setdefault("gpu", GPUS)

# Jobs run in a container with `--software-deployment-method apptainer` alone: in the image that
# containers/fedloom.def makes, or in the one that FEDLOOM_CONTAINER names. Its Python is used then, and
# no job server, which would go on in the container of a job that has ended.
CONTAINED = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method


container: os.environ.get("FEDLOOM_CONTAINER", "containers/fedloom.sif")


# Otherwise the interpreter that runs Snakemake runs the jobs, with a job server of this process
# (fedloom.jobs.server), unless the environment names another, or "" for none. The library is this checkout's.
JOB_SERVER = "" if CONTAINED else f"{secrets.token_hex(8)}:{os.getpid()}"
PYTHON = "" if CONTAINED else f"{in_shell(Path(sys.executable).parent)}:"
# A user's random.py or yaml.py in the current folder shadows no library's (PYTHONSAFEPATH, and no
# empty entry in PYTHONPATH), and what Jupyter asks matplotlib to draw on is not there (MPLBACKEND).
shell.executable("bash")
shell.prefix(
    f"export PYTHONSAFEPATH=1 MPLBACKEND=Agg PATH={PYTHON}$PATH"
    f" PYTHONPATH={in_shell(ROOT / 'workflow')}${{{{PYTHONPATH:+:$PYTHONPATH}}}}"
    f" {VARIABLE}=${{{{{VARIABLE}-{JOB_SERVER}}}}}; "
)


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        PLAN.tables,
        PLAN.figures,
        PLAN.partition_charts,


# With a limit of jobs per second, Snakemake begins after every job that it starts to check all inputs of
# all waiting jobs again and again, without an end: after some hundred jobs the checks take a quarter of
# a core. The limit is for schedulers of clusters.
onstart:
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None


onsuccess:
    if LAUNCHER not in os.environ:
        write_record(PLAN)
        print(f"\n{summary_of_results(PLAN)}")


onerror:
    print(failures(STARTED), file=sys.stderr)
