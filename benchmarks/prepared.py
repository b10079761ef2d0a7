"""Prepare the runs of a small study in this process, for benchmarks of single rounds.

Files of the study lie below the working directory, as for every study.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedloom.federated.build_task import build_task
from fedloom.federated.task import Task
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine.device import prepare_torch
from fedloom.planning import paths
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan
from fedloom.planning.run_labels import Run, Wildcards

STUDY = Path("study.yaml")
SGD = {"lr": 0.1, "schedule": "constant", "momentum": 0.9, "clip": 10.0}
PARTITION = {"scheme": "pathological", "clients": 10, "classes_per_client": 2, "held_out": 0}


def make_files(
    methods: Mapping[str, Any],
    rounds: int,
    dataset: Mapping[str, Any],
    backbone: str,
    backbones: Mapping[str, Any] | None = None,
) -> Plan:
    """Write a study into the working directory, and the files that its runs read.

    All ten clients take part in every round, with one epoch.

    Args:
        methods: entries of `methods`, by label.
        dataset: the entry of `datasets`.
        backbone: "micro_vit", "micro_clip", or a label of `backbones`.
        backbones: more entries of `backbones`, by label.
    """
    study = {
        "study": {
            "name": "benchmark",
            "rounds": rounds,
            "rounds_per_job": rounds,
            "evaluate_every": rounds,
            "report": {"last_evaluations": 1},
            "seeds": [0],
            "clients_per_round": PARTITION["clients"],
            "training": {"epochs": 1, "batch_size": 16, **SGD},
        },
        "datasets": {"images": dict(dataset)},
        "partitions": {"ten": PARTITION},
        "methods": dict(methods),
        "backbones": dict(backbones or {}),
        "select": {
            "datasets": ["images"],
            "partitions": ["ten"],
            "backbones": [backbone],
            "methods": list(methods),
            "tables": [],
            "figures": [],
        },
    }
    STUDY.write_text(yaml.safe_dump(study))
    plan, wanted = load_plan([STUDY]), _scenario(backbone, cache="features")
    run_job("dataset", plan.job("dataset", wanted))
    run_job("partition", plan.job("partition", wanted))
    run_job("cache", plan.job("cache", wanted))
    needs = {need for label in methods for need in plan.settings.methods[label].needs}
    if "patches" in needs:
        run_job("cache", plan.job("cache", _scenario(backbone, cache="patches")))
    if "prototypes" in needs:
        run_job("prototypes", plan.job("prototypes", wanted))
    return plan


def prepared(plan: Plan, label: str) -> tuple[Task, Hooks]:
    """Return the task and hooks of a method's run, as its job would prepare them."""
    (backbone,) = plan.settings.select.backbones
    spec = plan.run_spec(Run("images", "ten", backbone, label, 0))
    inputs = paths.run_inputs(spec.run, spec.method.needs)
    return build_task(spec, inputs, prepare_torch(1, spec.backbone.precision))


def _scenario(backbone: str, **labels: str) -> Wildcards:
    """Return the wildcards of a rule."""
    return Wildcards(dataset="images", partition="ten", backbone=backbone, seed=0, **labels)


def run_job(rule: str, job: object) -> None:
    """Run a job as its rule would."""
    importlib.import_module(f"fedloom.jobs.{rule}_job").run_job(job, threads=1)
