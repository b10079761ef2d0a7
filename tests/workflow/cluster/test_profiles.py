"""Profiles are read by Snakemake, and their scripts say what has become of a job."""

import importlib.util
import os
import subprocess
import sys

import pytest
from snakemake.cli import get_argument_parser

from fedloom.machine.install import ROOT

PROFILES = {
    "default": "local",
    "slurm": "slurm",
    "cluster-generic": "cluster-generic",
}


@pytest.fixture
def parsed(monkeypatch):
    """Return parse(profile): a profile's settings as Snakemake's command line has them."""
    monkeypatch.chdir(ROOT)

    def parse(profile: str):
        name = f"snakemake_executor_plugin_{PROFILES[profile].replace('-', '_')}"
        if profile != "default" and importlib.util.find_spec(name) is None:
            if os.environ.get("FEDLOOM_CI"):
                pytest.fail(f"no {name}")
            pytest.skip(f"no {name}; pip install 'fedloom[test]'")
        return get_argument_parser(profiles=[f"profiles/{profile}"]).parse_args([])

    return parse


@pytest.mark.parametrize("profile", PROFILES)
def test_snakemake_knows_every_setting_of_a_profile(parsed, profile):
    settings = parsed(profile)
    assert settings.rerun_incomplete
    if profile != "default":
        assert settings.executor == PROFILES[profile]
        assert settings.retries == 3
    for name in ("status_cmd", "cancel_cmd"):
        command = str(getattr(settings, f"{PROFILES[profile].replace('-', '_')}_{name}", ""))
        assert command in ("", "scancel") or os.access(ROOT / command, os.X_OK), command


def test_jobs_of_slurm_are_signalled_before_their_time_is_over(parsed):
    extra = parsed("slurm").default_resources["slurm_extra"]
    assert "--signal=USR1@180" in str(extra.raw)
    assert "--signal=B:USR1@180" in parsed("cluster-generic").cluster_generic_submit_cmd


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return write(name, script), which puts a program of that name first in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return write


def answer(script: str, *arguments: str, **options) -> str:
    command = [ROOT / "profiles" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("COMPLETED", "success"),
        *((state, "running") for state in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")),
        *((state, "failed") for state in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")),
    ],
)
def test_a_job_of_slurm(program, state, expected):
    program("scontrol", f"echo JobId=7 JobName=x JobState={state} Reason=None Requeue=1")
    assert answer("cluster-generic/status.sh", "7") == f"{expected}\n"


@pytest.mark.parametrize("known", ["COMPLETED", "CANCELLED by 0", ""])
def test_a_job_that_slurm_has_forgotten_is_looked_up_in_its_database(program, known):
    program("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program("sacct", f"echo '{known}'" if known else "exit 1")
    expected = "success" if known == "COMPLETED" else "failed"
    assert answer("cluster-generic/status.sh", "7") == f"{expected}\n"


def test_a_slurm_that_does_not_answer_is_asked_again(program):
    program(
        "scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    )
    assert answer("cluster-generic/status.sh", "7") == "running\n"


SLOW_TO_STOP = """
import pathlib, signal, time
heard = []
signal.signal(signal.SIGUSR1, lambda *_: (heard.append(True), print("heard", flush=True)))
print("ready", flush=True)
while not (heard and pathlib.Path("round_done").exists()):
    time.sleep(0.02)
raise SystemExit(7)
"""


@pytest.mark.parametrize("second", [None, "USR1", "TERM"])
@pytest.mark.parametrize("first", ["USR1", "TERM"])
def test_the_jobscript_hands_a_signal_on_and_waits_for_the_job(tmp_path, first, second):
    """Snakemake fills the job into the script; a scheduler starts it in a process group."""
    (tmp_path / "train.py").write_text(SLOW_TO_STOP)
    job = f"{sys.executable} {tmp_path}/train.py"
    text = (ROOT / "profiles/cluster-generic/jobscript.sh").read_text()
    script = tmp_path / "job.sh"
    script.write_text(text.format(properties="", exec_job=f"{job} && exit 0 || exit 1"))
    process = subprocess.Popen(
        ["bash", script], stdout=subprocess.PIPE, text=True, process_group=0, cwd=tmp_path
    )
    assert process.stdout.readline() == "ready\n"
    subprocess.run(["kill", f"-{first}", str(process.pid)], check=True)
    assert process.stdout.readline() == "heard\n"
    if second is not None:
        subprocess.run(["kill", f"-{second}", str(process.pid)], check=True)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
    (tmp_path / "round_done").touch()
    output, _ = process.communicate(timeout=20)
    assert set(output.split()) <= {"heard"}
    assert process.returncode == 1
