"""Measure the memory that training takes beside the memory that the plan asks a cluster for.

    PYTHONPATH=workflow .venv/bin/python benchmarks/memory.py

trains a ViT-B/16 at 224 px, or a CLIP with one, with random weights for one round in a separate
process, for every method and batch size, and prints the peak of resident memory, the request, and
their ratio. Two clients take two steps each: on a core, clients of a model of this size train one
after the other, so that more of them need no more memory for activations. It takes about ten
minutes of one core.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import open_clip
import timm
import yaml
from prepared import run_job
from safetensors.torch import save_file

from fedloom.hooks import manifest
from fedloom.machine.install import ROOT
from fedloom.planning import paths, run_labels
from fedloom.planning.job_specs import to_json
from fedloom.planning.load_plan import load_plan
from fedloom.planning.plan import Plan

MODELS = {
    "vit": ("timm", "vit_base_patch16_224"),
    "clip": ("open_clip", "ViT-B-16-quickgelu"),
}
WEIGHTS = Path("random.safetensors")
CLIENTS = 2
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "workflow"), "OMP_NUM_THREADS": "1"}


def plan_of(method: str, batch: int) -> Plan:
    """Write a study of one round into the working directory, and return its plan."""
    library, name = MODELS[manifest.find_method(method).family or "vit"]
    training = {"epochs": 1, "batch_size": batch, "lr": 0.01, "schedule": "constant"}
    classes = 4 if library == "timm" else 40  # a text tower's memory grows with them
    images = {"source": "glyphs", "classes": classes, "max_test": 16}
    images["max_train"] = max(classes, 2 * CLIENTS * batch)
    study = {
        "study": {
            "name": "memory",
            **{"rounds": 1, "rounds_per_job": 1, "evaluate_every": 1, "seeds": [0]},
            **{"clients_per_round": CLIENTS, "report": {"last_evaluations": 1}},
            "training": training,
        },
        "datasets": {"images": images},
        "partitions": {"few": {"scheme": "iid", "clients": CLIENTS, "held_out": 0}},
        "backbones": {"vit": {"library": library, "name": name, "weights": str(WEIGHTS.resolve())}},
        "methods": {"method": {"plugin": method}},
        "select": {
            **{"datasets": ["images"], "partitions": ["few"], "backbones": ["vit"]},
            **{"methods": ["method"], "tables": [], "figures": []},
        },
    }
    file = Path("study.yaml")
    file.write_text(yaml.safe_dump(study))
    return load_plan([file])


def measure(method: str, batch: int) -> tuple[float, int]:
    """Return the peak of a training job's resident memory, and what it asks for, in MB."""
    run = run_labels.Run("images", "few", "vit", "method", 0)
    plan = plan_of(method, batch)
    labels = run_labels.Wildcards(**vars(run), end=paths.four_digits(1), cache="features")
    asked = plan.resources("train", labels).mem_mb  # before there is a store, as on a cluster
    run_job("dataset", plan.job("dataset", labels))
    run_job("partition", plan.job("partition", labels))
    if "features" in plan.run_inputs(run):
        run_job("cache", plan.job("cache", labels))
    command = [
        sys.executable,
        "-m",
        "fedloom.jobs",
        "train",
        "--job",
        to_json(plan.job("train", labels)),
    ]
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{method} with batches of {batch} did not train")
    return used.ru_maxrss * 1024 / 1e6, asked


def main() -> None:
    """Print a row for every method and batch size."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--methods", nargs="+", default=["fedvpt", "promptfl", "fedavg"])
    arguments.add_argument("--batches", nargs="+", type=int, default=[16, 64])
    asked_for = arguments.parse_args()
    print("| method | batch | peak, MB | request, MB | request / peak |\n|---|--:|--:|--:|--:|")
    for method in asked_for.methods:
        for batch in asked_for.batches:
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                library, name = MODELS[manifest.find_method(method).family or "vit"]
                create = timm.create_model if library == "timm" else open_clip.create_model
                save_file(create(name).state_dict(), WEIGHTS)
                peak, request = measure(method, batch)
                os.chdir("/")
            row = f"| {method} | {batch} | {peak:,.0f} | {request:,} | {request / peak:.2f} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
