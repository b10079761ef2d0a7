"""A Slurm of one node in a separate folder, without systemd, cgroups or database."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path

CONFIG = """
ClusterName=fedloom
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,bf_interval=2
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=30
MinJobAge=3600
KillWait=2
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")


def missing() -> str | None:
    """Return why there can be no Slurm here, or None if there can."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if lacking:
        return f"no {', '.join(lacking)}; apt-get install --no-install-recommends slurm-wlm munge"
    return None


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def wait_for(condition: Callable[[], object], what: str, seconds: float = 300) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it does not within the time limit.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


class Slurm:
    """A running Slurm, and how to talk to it.

    Attributes:
        folder: of its configuration, logs and state; short, because a socket's path must be.
        environment: variables with which commands and jobs find it.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        folder.chmod(0o755)  # munged refuses a socket that others cannot reach
        for name in ("state", "spool", "bin"):
            (folder / name).mkdir()
        config = folder / "slurm.conf"
        with socket.socket() as one, socket.socket() as two:
            for each in (one, two):
                each.bind(("127.0.0.1", 0))
            ports = {"controller": one.getsockname()[1], "daemon": two.getsockname()[1]}
        config.write_text(CONFIG.format(user=getpass.getuser(), folder=folder, **ports))
        self.environment = os.environ | {"SLURM_CONF": str(config), "PATH": _path()}
        # the executor of job steps takes every SLURM_* but a few from what srun sees
        srun = shutil.which("srun", path=_path())
        wrapper = folder / "bin/srun"
        wrapper.write_text(f'#!/bin/sh\nSLURM_CONF={config} exec {srun} "$@"\n')
        wrapper.chmod(0o755)
        self.environment["PATH"] = f"{folder}/bin:{_path()}"
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)

    def start(self) -> None:
        """Start the three daemons and wait until the node takes jobs."""
        options = {"key": "key", "socket": "socket", "pid": "pid", "log": "log", "seed": "seed"}
        files = [f"--{o}-file={self.folder}/munge.{s}" for o, s in options.items() if o != "socket"]
        self.run("munged", "--force", f"--socket={self.folder}/munge.socket", *files)
        self.run("slurmctld")
        self.start_node()

    def start_node(self) -> None:
        """Start the node's daemon and wait until it takes jobs."""
        self.run("slurmd")
        wait_for(lambda: self.run("sinfo", "-h", "-o", "%T") in ("idle", "mixed"), "the node")

    def stop(self) -> None:
        """End all jobs, then the daemons."""
        self.run("scancel", "--user", getpass.getuser())
        wait_for(lambda: not self.run("squeue", "-h"), "the end of all jobs")
        for name in ("slurmd", "slurmctld", "munge"):
            os.kill(self.process(name), signal.SIGTERM)

    def process(self, name: str) -> int:
        """Return the process id of a daemon."""
        return int((self.folder / f"{name}.pid").read_text())

    def run(self, *command: str) -> str:
        """Run a command and return what it prints, without the last line's end."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def states(self, ids: Iterable[str]) -> list[str]:
        """Return the states of jobs, as Slurm names them."""
        states = dict(
            line.split() for line in self.run("squeue", "-ht", "all", "-o", "%i %T").splitlines()
        )
        return [states[job] for job in ids]


@contextmanager
def running():
    """Yield a Slurm that lives as long as the block."""
    slurm = Slurm(Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp")))
    slurm.start()
    try:
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(slurm.folder, ignore_errors=True)
