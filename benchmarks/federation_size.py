"""What a round, its checkpoint and an evaluation take in federations of more and more clients.

    PYTHONPATH=workflow .venv/bin/python benchmarks/federation_size.py

Ten clients are sampled in every round, whatever the size, on the micro ViT; a client has
four training images and two test images of noise. All clients have taken part before, so that each
has a personal state. Every line is a separate process with one thread: medians over rounds, in
CPU seconds; `peak` is that of the process's memory.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from fedloom.backbones import vit
from fedloom.common.files import write_table
from fedloom.common.trees import tensor_map
from fedloom.config.reading import read
from fedloom.data import loading
from fedloom.data.partition import divide_dataset
from fedloom.data.store import Example, ImageStore, write_images
from fedloom.federated.answer_counts import AnswerCounts
from fedloom.federated.build_task import method_facts
from fedloom.federated.checkpoint import Checkpoint
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.rows import Rows
from fedloom.federated.state import Participation, State
from fedloom.federated.task import Task, TrainingOptions
from fedloom.hooks import loader, manifest
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine.device import prepare_torch
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import resolve

CLASSES, TRAIN, TEST, SAMPLED = 10, 4, 2, 10
COLUMNS = (
    "read, s",
    "round, ms",
    "checkpoint, ms",
    "checkpoint, KB",
    "evaluation of 100, s",
    "of all, s",
    "peak, MB",
)


def _task(name: str, clients: int, folder: Path) -> tuple[Task, float]:
    """Return a task with this number of clients, and the seconds to read their images' rows.

    Args:
        folder: where its files are written.
    """
    rng, each = np.random.default_rng(0), TRAIN + TEST
    backbone = vit.load(resolve(read(ROOT / "config.yaml")).backbones["micro_vit"].settings)
    examples = (
        Example(rng.integers(0, 255, (8, 8, 1), np.uint8), n % CLASSES, n % each < TEST, "noise")
        for n in range(clients * each)
    )
    names = [f"class {number}" for number in range(CLASSES)]
    write_images(folder / "images.arrow", examples, (8, 8, 1), names, "noise")
    store = ImageStore(folder / "images.arrow")
    scheme = {"scheme": "iid", "clients": clients, "held_out": 0.0}
    table = divide_dataset(store.labels, store.test, store.domains, scheme, seed=0)
    write_table(folder / "partition.parquet", table)
    features = torch.from_numpy(rng.normal(size=(len(store), backbone.width)).astype(np.float32))
    started = time.process_time()
    data = loading.load_partition(
        store, folder / "partition.parquet", names, torch.device("cpu"), lambda block: features
    )
    seconds = time.process_time() - started
    method = manifest.find_method(name)
    task = Task(
        seed=0,
        options=SimpleNamespace(**method.complete_options({})),
        training=TrainingOptions(
            **method.merge_training({"epochs": 1, "batch_size": TRAIN, "lr": 0.1}),
            schedule_rounds=1,
        ),
        backbone=backbone,
        data=data,
        clients_per_round=SAMPLED,
        declared=method_facts(method, method.complete_options({})),
    )
    return task, seconds


def _everybody_trained(task: Task, hooks: Hooks) -> State:
    """Return the state after round 0, as if every client had taken part before."""
    start, ids = initial_state(task, hooks), task.data.participating
    states = {k: tensor_map(torch.clone, hooks.init_client(task=task, client=k)) for k in ids}
    return start.after(State(start.server, states, {k: Participation(1, 0, 1.0) for k in ids}))


def measure(name: str, clients: int, rounds: int) -> dict[str, float]:
    """Return the medians of a method's rounds, by column."""
    prepare_torch(1)
    times: dict[str, list[float]] = {column: [] for column in COLUMNS}
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        task, seconds = _task(name, clients, folder)
        times["read, s"].append(seconds)
        hooks = loader.load_hooks(manifest.find_method(name))
        state = _everybody_trained(task, hooks)
        nothing = AnswerCounts()
        checkpoint = Checkpoint(folder / "checkpoint.safetensors", "benchmark")
        for number in range(1, rounds + 2):
            started = time.process_time()
            state, row = train_round(task.at(number), hooks, state)
            trained = time.process_time()
            selected = [update.client_id for update in row.updates]
            checkpoint.write(number, state, selected, Rows.from_round(row, [], nothing))
            written = time.process_time()
            if number > 1:  # the first round warms up
                files = (
                    folder / "checkpoint.safetensors",
                    folder / f"checkpoint/{number:04}.safetensors",
                )
                times["round, ms"].append(1e3 * (trained - started))
                times["checkpoint, ms"].append(1e3 * (written - trained))
                times["checkpoint, KB"].append(sum(file.stat().st_size for file in files) / 1e3)
        for column, ids in (("evaluation of 100, s", range(100)), ("of all, s", range(clients))):
            started = time.process_time()
            evaluate(task.at(rounds), hooks, state, ids=ids)
            times[column].append(time.process_time() - started)
    times["peak, MB"].append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    return {column: statistics.median(values) for column, values in times.items()}


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--methods", nargs="+", default=["head_tuning", "pfedpg"])
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs=2, metavar=("METHOD", "CLIENTS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        method, clients = arguments.only
        print(json.dumps(measure(method, int(clients), arguments.rounds)))
        return
    print(f"| method | clients | {' | '.join(COLUMNS)} |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for method in arguments.methods:
        for clients in arguments.clients:
            command = [sys.executable, __file__, "--rounds", str(arguments.rounds)]
            command += ["--only", method, str(clients)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout)
            numbers = " | ".join(f"{found[column]:,.2f}" for column in COLUMNS)
            print(f"| {method} | {clients:,} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
