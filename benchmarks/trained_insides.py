"""Peak memory and time of one step that trains the inside of a ViT-B/16, per method.

    PYTHONPATH=workflow python benchmarks/trained_insides.py

Two clients with one batch of images each at 224 px, one local step and the average, random weights
(a step takes as long with any others), one thread. Every line is a separate process, and its peak
that of the resident memory. `--case` runs a single one and prints a line of JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import timm
import torch

from fedloom.backbones.vit import FrozenViT
from fedloom.contract.tiny import tiny_task
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader, manifest
from fedloom.machine.device import prepare_torch
from fedloom.machine.memory import BatchLimits

MODEL = "vit_base_patch16_224"
CASES = {  # label: plugin, options, clients at once, gradient checkpointing
    "fedavg, both clients at once": ("fedavg", {}, 2, False),
    "fedavg, one client at a time": ("fedavg", {}, 1, False),
    "fedavg, one at a time, checkpointing": ("fedavg", {}, 1, True),
    "fedavg of biases (BitFit)": ("fedavg", {"train": "bias$"}, 2, False),
    "fedavg_adapter": ("fedavg_adapter", {}, 2, False),
    "fedavg_adapter, checkpointing": ("fedavg_adapter", {}, 2, True),
    "fedlora": ("fedlora", {}, 2, False),
    "fedlora, checkpointing": ("fedlora", {}, 2, True),
    "fedvpt": ("fedvpt", {}, 2, False),
}


def _peak() -> float:
    """Return the peak of this process's resident memory so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run(label: str, batch: int) -> dict[str, float]:
    """Train one round of a case; return seconds, and peak memory before it and after, in GB."""
    name, options, width, checkpointing = CASES[label]
    prepare_torch(1)
    method = manifest.find_method(name)
    torch.manual_seed(0)
    model = timm.create_model(MODEL, num_classes=0)
    backbone = FrozenViT(model, gradient_checkpointing=checkpointing)
    with tempfile.TemporaryDirectory() as folder:
        task = tiny_task(method, Path(folder), **options)
        data = replace(task.data, train=[rows[:batch] for rows in task.data.train])
        task = replace(
            task,
            backbone=backbone,
            data=data,
            clients_per_round=2,
            training=replace(task.training, epochs=1, batch_size=batch),
            limits=BatchLimits(state_bytes=2**40 if width > 1 else 1),
        )
        hooks = loader.load_hooks(method)
        state = initial_state(task, hooks)
        before, started = _peak(), time.process_time()
        _, row = train_round(task.at(1), hooks, state)
        seconds = time.process_time() - started
    sent = row.bytes_up / 4 / row.clients
    return {"floats": sent, "seconds": seconds, "before": before, "peak": _peak()}


def main() -> None:
    """Print a Markdown table, or one case as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--batch", type=int, default=4, help="images of a client")
    parser.add_argument("--case", choices=CASES)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(run(given.case, given.batch)))
        return
    print("| method | floats sent | CPU seconds | peak GB |\n|---|---|---|---|")
    for label in CASES:
        command = [sys.executable, __file__, "--case", label, "--batch", str(given.batch)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        case = json.loads(out.splitlines()[-1])
        figures = f"{case['floats']:,.0f} | {case['seconds']:.0f} | {case['peak']:.1f}"
        print(f"| {label} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
