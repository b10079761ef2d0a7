"""How much faster a cohort trains as one batch than client by client: ratios, in one run.

    make bench

Times one round of local training (10 clients of the digits on the micro ViT, one thread), stacked
and one by one in turn, and prints the median of the ratios.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch

from fedloom.backbones import vit
from fedloom.common.files import write_table
from fedloom.config.reading import read
from fedloom.config.settings import Settings
from fedloom.data import federation, loading, sources
from fedloom.data.partition import divide_dataset
from fedloom.data.store import ImageStore
from fedloom.federated.build_task import method_facts
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import Task, TrainingOptions, WarmStart
from fedloom.hooks import loader, manifest
from fedloom.machine.device import prepare_torch
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import resolve
from fedloom.toolbox.prototypes import warm_start


def _data(folder: Path, settings: Settings) -> federation.Federation:
    digits = settings.datasets["digits"]
    sources.build_store(digits.source, digits.settings, folder / "x.arrow")
    store = ImageStore(folder / "x.arrow")
    partition = settings.partitions["pathological"]
    spec = {"scheme": partition.scheme, **partition.settings}
    table = divide_dataset(store.labels, store.test, store.domains, spec, seed=0)
    write_table(folder / "p.parquet", table)
    names = [str(number) for number in range(10)]
    return loading.load_partition(store, folder / "p.parquet", names, torch.device("cpu"))


def _seconds(task: Task, hooks, state: State, stacked: bool) -> float:
    started = time.perf_counter()
    declared = replace(task.declared, stacked=stacked)
    train_round(replace(task, declared=declared), hooks, state)
    return time.perf_counter() - started


def main() -> None:
    """Print a Markdown table of ratios."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs per line")
    pairs = parser.parse_args().pairs
    prepare_torch(1)
    settings = resolve(read(ROOT / "config.yaml"))
    backbone = vit.load(settings.backbones["micro_vit"].settings)
    print("| method | batch | one by one, s | stacked, s | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data = _data(Path(folder), settings)
        images = torch.from_numpy(data.store.images(torch.arange(len(data.store)).numpy()).copy())
        tokens = torch.cat([backbone.class_tokens(part) for part in images.split(256)])
        data.tokens = lambda block: tokens[:, -1 if block is None else block - 1]
        rows = [torch.from_numpy(data.train[k]) for k in data.participating[:10]]
        prototypes = warm_start(tokens[:, :-1], data.labels, rows, 10)
        for name in ("head_tuning", "fedvpt", "pep_fedpt"):
            method = manifest.find_method(name)
            hooks = loader.load_hooks(method)
            for batch in (4, 16, 64):
                training = method.merge_training({"epochs": 1, "batch_size": batch, "lr": 0.3})
                task = Task(
                    seed=0,
                    options=SimpleNamespace(**method.complete_options({})),
                    training=TrainingOptions(**training, schedule_rounds=1),
                    backbone=backbone,
                    data=data,
                    clients_per_round=10,
                    declared=method_facts(method, method.complete_options({})),
                    warm_start=WarmStart(**prototypes),
                )
                state = initial_state(task, hooks)
                times = {True: [], False: []}
                _seconds(task.at(1), hooks, state, True)
                for _ in range(pairs):
                    for stacked, seconds in times.items():
                        seconds.append(_seconds(task.at(1), hooks, state, stacked))
                ratio = statistics.median(
                    a / b for a, b in zip(times[False], times[True], strict=True)
                )
                alone, together = (statistics.median(times[s]) for s in (False, True))
                print(f"| {name} | {batch} | {alone:.2f} | {together:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
