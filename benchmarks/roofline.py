"""How close local training comes to the machine's matrix products: a roofline for every method.

    PYTHONPATH=workflow .venv/bin/python benchmarks/roofline.py

A round of ten clients on letters, on a micro backbone, one epoch with batches of 16, one thread.
Operations are those of matrix products, convolutions and attention, forward and backward, which
torch.utils.flop_counter counts in a round. A step is one of all clients at once: the round's
operations, divided by the steps of its epoch. The peak is that of a product of two float32 matrices
on one thread, timed before each round; printed are medians, in processor seconds.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence

import torch
from prepared import make_files, prepared
from torch.utils.flop_counter import FlopCounterMode

from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import Task
from fedloom.hooks import manifest
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine.install import ROOT

METHODS = """head_tuning fedvpt fedvpt_deep pep_fedpt sgpt pfedpg pfpt fedlora fedavg_adapter
fedavg promptfl fedotp fedpha""".split()  # noqa: SIM905
LETTERS = {"source": "glyphs", "classes": 20, "draws": 2}
SIDE = 1024  # of the matrices whose product is timed


def peak() -> float:
    """Measure the operations per processor second of a product of two float32 matrices."""
    a, b = torch.rand(2, SIDE, SIDE)
    started = time.process_time()
    for _ in range(4):
        torch.mm(a, b)
    return 4 * 2 * SIDE**3 / (time.process_time() - started)


def steps(task: Task) -> int:
    """Return how many steps a round has: those of the client with most images."""
    most = max(len(task.data.train[client]) for client in task.data.participating)
    return -(-most // task.training.batch_size)


def measure(task: Task, hooks: Hooks, rounds: int) -> str:
    """Return a method's row: its operations, and those per second of `rounds` rounds."""
    state = initial_state(task, hooks)
    with FlopCounterMode(display=False) as counter:  # this round warms up, too
        state, _ = train_round(task.at(1), hooks, state)
    count = counter.get_total_flops()
    seconds, shares = [], []
    for number in range(2, rounds + 2):
        limit, started = peak(), time.process_time()
        state, _ = train_round(task.at(number), hooks, state)
        seconds.append(time.process_time() - started)
        shares.append(count / seconds[-1] / limit)
    median = statistics.median(seconds)
    return (
        f"| {task.method} | {count / steps(task) / 1e9:.3g} | {count / 1e9:.3g} | {median:.3f} "
        f"| {count / median / 1e9:.3g} | {statistics.median(shares):.1%} |"
    )


def family(name: str, methods: Sequence[str], rounds: int) -> None:
    """Print the rows of those of the methods that run on a micro backbone of a family."""
    chosen = [method for method in methods if manifest.find_method(method).family == name]
    if not chosen:
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        labels = {f"{method}_once": {"plugin": method} for method in chosen}
        plan = make_files(labels, rounds + 1, LETTERS, f"micro_{name}")
        for label in labels:
            print(measure(*prepared(plan, label), rounds), flush=True)
        os.chdir(ROOT)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rounds", type=int, default=5, help="timed, after one that is not")
    given = parser.parse_args()
    torch.set_num_threads(1)
    limit = statistics.median(peak() for _ in range(5))
    print(f"One thread multiplies {SIDE} x {SIDE} matrices at {limit / 1e9:.0f} GFLOP/s.\n")
    print("| method | GFLOP a step | GFLOP a round | round, CPU s | GFLOP/s | of the peak |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in ("vit", "clip"):
        family(name, given.methods, given.rounds)


if __name__ == "__main__":
    main()
