"""Kill a study at random moments, on this machine and on Slurm, and compare what it gives.

    make kills                 (30 kills, some 20 minutes on two cores)
    make kills ARGS="--count 6 --seed 1"

Each time two runs are trained from nothing. At a moment between the start and the end of a run that
nobody disturbs, Snakemake, a job, or Slurm's node is killed (SIGKILL); then the study is started
again until it ends. Evaluations, rows of clients and states must be the bytes of undisturbed runs.
"""

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))  # as pytest does

import one_node
import tiny_study

LATENCY = ("--latency-wait", "20")
PROFILES = {
    "local": ("--cores", "2"),
    "cluster-generic": (
        *("--workflow-profile", "profiles/cluster-generic", *LATENCY),
        *("--seconds-between-status-checks", "2"),
    ),
    "slurm": (
        *("--workflow-profile", "profiles/slurm", *LATENCY),
        *("--slurm-init-seconds-before-status-checks", "15"),
    ),
}
# how often each place and victim is drawn, of 15
DRAWN = {
    ("local", "snakemake"): 3,
    ("local", "job"): 3,
    ("cluster-generic", "snakemake"): 3,
    ("cluster-generic", "job"): 2,
    ("cluster-generic", "node"): 2,
    ("slurm", "snakemake"): 1,
    ("slurm", "job"): 1,
}
ATTEMPTS = 6


def jobs_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that train in a checkout, and those that wait for them."""
    found = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] != str(folder):
            continue
        if {"fedloom.jobs.server", "train"} <= set(words):
            found.append(process)
        if "--serve" in words:  # the job server, or a keeper of a job
            with contextlib.suppress(psutil.NoSuchProcess):
                found += process.children()
    return found


def processes_of_node(slurm: one_node.Slurm) -> list[psutil.Process]:
    """Return the node's daemon, what watches over its jobs, and all processes of its jobs."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if environment.get("SLURM_CONF") == slurm.environment["SLURM_CONF"]:
            of_node = process.info["name"].startswith(("slurmd", "slurmstepd"))
            found += [process] if of_node or "SLURM_JOB_ID" in environment else []
    return found


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def disturb(
    what: str, main: psutil.Popen, folder: Path, slurm: one_node.Slurm, rng: random.Random
) -> bool:
    """Kill Snakemake, a job (once there is one), or the node, which starts again at once.

    Returns:
        False if Snakemake had ended, so that there was nothing to disturb.
    """
    if what == "job":
        while main.poll() is None and not (jobs := jobs_in(folder)):
            time.sleep(0.02)
    if main.poll() is not None:
        return False
    if what == "snakemake":
        kill([main])
    elif what == "job":
        kill([rng.choice(jobs)])
    else:
        kill(processes_of_node(slurm))
        slurm.run("slurmd")
    return True


def finish(folder: Path, where: str, environment: dict[str, str], first: psutil.Popen) -> int:
    """Start the study again until it ends well; return how many starts that took, `first` too."""
    process = first
    for attempt in range(1, ATTEMPTS + 1):
        if process.wait() == 0:
            return attempt
        tiny_study.start(folder, "--unlock", environment=environment).wait()
        process = start(folder, where, environment)
    process.kill()
    raise TimeoutError(f"{folder}: not done after {ATTEMPTS} starts")


def start(folder: Path, where: str, environment: dict[str, str]) -> psutil.Popen:
    return tiny_study.start(folder, *PROFILES[where], *tiny_study.TARGETS, environment=environment)


def results(folder: Path) -> list[bytes]:
    """Return the bytes of evaluations, of rows of clients and of the states of both runs."""
    evaluations = tiny_study.evaluations(folder)
    runs = [folder / tiny_study.RUN.format(seed) for seed in tiny_study.SEEDS]
    names = ("clients.parquet", f"rounds/{tiny_study.ROUNDS:04}.safetensors")
    return evaluations + [(run / name).read_bytes() for run in runs for name in names]


def scenarios(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield places and victims, in the proportions of DRAWN."""
    deck = [scenario for scenario, times in DRAWN.items() for _ in range(times)]
    while True:
        yield from rng.sample(deck, len(deck))


def main() -> int:
    """Kill as often as asked for, and return 1 if anything came out differently."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    killed = same = 0
    with one_node.running() as slurm:
        prepared = tiny_study.prepare(folder / "prepared")
        straight = tiny_study.copy(prepared, folder / "straight")
        tiny_study.straight(straight)
        expected = results(straight)
        environments = dict.fromkeys(PROFILES, slurm.environment) | {"local": dict(os.environ)}
        durations: dict[str, float] = {}
        for where, what in scenarios(rng):
            if killed == arguments.count:
                break
            environment = environments[where]
            if where not in durations:
                checkout = tiny_study.copy(prepared, folder / f"undisturbed-{where}")
                durations[where] = seconds_of(checkout, where, environment)
                assert results(checkout) == expected, f"{where}, undisturbed"
            moment = rng.uniform(0, durations[where])
            checkout = tiny_study.copy(prepared, folder / "checkout")
            process = start(checkout, where, environment)
            time.sleep(moment)
            disturbed = disturb(what, process, checkout, slurm, rng)
            starts = finish(checkout, where, environment, process)
            equal = results(checkout) == expected
            killed += disturbed
            same += disturbed and equal
            done = f"{what} killed" if disturbed else "ended before"
            print(
                f"{killed:3} {where:16} {done:17} after {moment:5.1f} s, {starts} starts: "
                f"{'the same' if equal else 'DIFFERENT'}",
                flush=True,
            )
            if equal:
                shutil.rmtree(checkout)
            else:
                checkout.rename(folder / f"different-{killed}")
    print(f"{same} of {killed} kills gave the same bytes (seed {arguments.seed})")
    return same != killed


def seconds_of(checkout: Path, where: str, environment: dict[str, str]) -> float:
    """Return how long the study takes if nobody disturbs it."""
    began = time.monotonic()
    assert start(checkout, where, environment).wait() == 0
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
