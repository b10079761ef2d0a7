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

# Ahead of a time limit, a scheduler sends SIGUSR1 to every process of a job. It would end Snakemake and
# its shells, so they ignore it. Processes that they start inherit this; only training handles the signal.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)

# If jobs run on this machine, each job that can use a GPU gets one for itself, unless --set-resources
# says otherwise. On a cluster, the profile tells the scheduler what to give.
with one_line_errors():
    own = workflow.local_exec and workflow.is_main_process
    GPUS = len(gpus.visible()) if own else 0
if GPUS:
    workflow.global_resources.setdefault("gpu", GPUS)

# Only with `--software-deployment-method apptainer`, jobs run in a container. Its image is the one that
# containers/fedloom.def makes, or the one that FEDLOOM_CONTAINER names. Jobs then use the container's
# Python, and no job server: that would go on in the container of a job that has ended.
CONTAINED = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method


container: os.environ.get("FEDLOOM_CONTAINER", "containers/fedloom.sif")


# Without a container, the interpreter that runs Snakemake runs the jobs, with a job server of this process
# (fedloom.jobs.server). If the environment names another server, that is used; "" stands for none. Jobs
# use the library of this checkout.
JOB_SERVER = "" if CONTAINED else f"{secrets.token_hex(8)}:{os.getpid()}"
PYTHON = "" if CONTAINED else f"{in_shell(Path(sys.executable).parent)}:"
# With PYTHONSAFEPATH, and without an empty entry in PYTHONPATH, a user's random.py or yaml.py in the
# current folder does not hide the library's. MPLBACKEND replaces that of Jupyter, which jobs lack.
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


# If there is a limit of jobs per second, each start of a job lets Snakemake check all inputs of all
# waiting jobs again and again, without an end. After some hundred jobs, these checks take a quarter of a
# core. The limit is meant for schedulers of clusters.
onstart:
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None


onsuccess:
    if LAUNCHER not in os.environ:
        write_record(PLAN)
        print(f"\n{summary_of_results(PLAN)}")


onerror:
    print(failures(STARTED), file=sys.stderr)
