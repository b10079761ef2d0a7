"""A study of seconds in a separate checkout, run by Snakemake with one profile or another."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil

import checkout
import one_process
from fedloom.hooks import manifest
from fedloom.planning.load_plan import load_plan

SEEDS = (0, 1)
ROUNDS = 250  # some seconds
STUDY = f"""
study:
  name: tiny
  rounds: {ROUNDS}
  seeds: [0, 1]
  clients_per_round: 3
  rounds_per_job: {ROUNDS}
  evaluate_every: {ROUNDS // 5}
  report: {{last_evaluations: 1}}
  training: {{epochs: 1, batch_size: 16, lr: 0.3}}
partitions:
  six: {{scheme: pathological, clients: 6, classes_per_client: 2, held_out: 0.17}}
select:
  datasets: [digits]
  partitions: [six]
  methods: [head_tuning]
  tables: [main]
  figures: []
"""
RUN = "results/runs/digits/six/micro_vit/head_tuning/seed{}"
# the last files that training jobs write
TARGETS = tuple(f"{RUN.format(seed)}/rounds/{ROUNDS:04}.json" for seed in SEEDS)
SCENARIO = partial(SimpleNamespace, dataset="digits", partition="six", backbone="micro_vit")
COMMAND = (sys.executable, "-m", "snakemake", "--configfile", "tiny.yaml")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a copy with the plugins of this checkout; those of the copy have the same names."""
    manifest.discover_methods()  # once for this process
    with contextlib.chdir(folder):
        yield


def prepare(folder: Path) -> Path:
    """Make a checkout with all that training needs, made in this process; return its folder."""
    checkout.copy_to(folder)
    (folder / "tiny.yaml").write_text(STUDY)
    with _inside(folder):
        plan = load_plan([Path("tiny.yaml")])
        one_process.run("dataset", plan.job("dataset", SCENARIO()))
        one_process.run("cache", plan.job("cache", SCENARIO(cache="features")))
        for seed in SEEDS:
            one_process.run("partition", plan.job("partition", SCENARIO(seed=seed)))
    return folder


def copy(prepared: Path, folder: Path) -> Path:
    """Copy a prepared checkout, in which nothing is trained; return the copy."""
    return Path(shutil.copytree(prepared, folder))


def straight(folder: Path) -> list[bytes]:
    """Train all runs in this process, which neither dies nor starts again.

    Returns:
        Their evaluations, by seed.
    """
    with _inside(folder):
        plan = load_plan([Path("tiny.yaml")])
        for seed in SEEDS:
            one_process.train(plan, SCENARIO(seed=seed), "head_tuning", artefacts=set())
    return evaluations(folder)


def start(folder: Path, *arguments: str, environment: dict[str, str]) -> psutil.Popen:
    """Start Snakemake in a checkout; what it prints is appended to snakemake.log there."""
    path = os.pathsep.join([str(folder / "workflow"), environment.get("PYTHONPATH", "")])
    with (folder / "snakemake.log").open("a") as log:
        return psutil.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env=environment | {"PYTHONPATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def evaluations(folder: Path, seeds: Sequence[int] = SEEDS) -> list[bytes]:
    """Return the bytes of evaluation.parquet of runs that are trained, which is made here."""
    with _inside(folder):
        plan = load_plan([Path("tiny.yaml")])
        for seed in seeds:
            chosen = SCENARIO(seed=seed, method="head_tuning")
            one_process.run("evaluate", plan.job("evaluate", chosen))
    return [(folder / RUN.format(seed) / "evaluation.parquet").read_bytes() for seed in seeds]
