"""Seconds of a round at the size of the papers: ViT-B/16 at 224 px, on the GPU if there is one.

    PYTHONPATH=workflow .venv/bin/python benchmarks/gpu.py --precision bf16

100 clients of 500 random images in an image store, 5 of them a round, 5 epochs, batch 64. Images
and weights are random, which changes nothing of what a step costs. `--small` runs the same with
micro models on a CPU in a minute; `--count` counts the full size's operations there.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal
from unittest import mock

import numpy as np
import timm
import torch
from device_work import Work, count_work
from torch.utils.flop_counter import FlopCounterMode

from fedloom.backbones import block_pass, blocks
from fedloom.backbones.backbone import load_backbone
from fedloom.backbones.vit import FrozenViT
from fedloom.config.settings import LIBRARIES
from fedloom.data.federation import Federation
from fedloom.data.store import Example, ImageStore, write_images
from fedloom.federated.build_task import method_facts
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import Task, TrainingOptions, WarmStart
from fedloom.hooks import loader, manifest
from fedloom.machine.device import prepare_torch

CLASSES, CLIENTS, IMAGES, TESTED, COHORT, EPOCHS, BATCH = 100, 100, 500, 100, 5, 5, 64
METHODS = ["fedvpt", "pep_fedpt", "sgpt", "pfpt", "fedpha"]
COMPILE: dict[str, bool | Literal["auto"]] = {"auto": "auto", "true": True, "false": False}
SMALL = {"images": 40, "batch": 16, "epochs": 2}


def examples(count: int, size: tuple[int, int]) -> Iterator[Example]:
    """Yield images of noise: a thousand, again and again, since to draw them takes long."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (min(count, 1000), *size, 3), np.uint8)
    labels = rng.integers(0, CLASSES, count)
    for k in range(count):
        test = k == 0  # a store without test images is refused; clients' own are chosen below
        yield Example(drawn[k % len(drawn)], int(labels[k]), test, "noise")


def federation(folder: Path, images: int, backbone, size, device: torch.device) -> Federation:
    """Make 100 clients; their class tokens are noise, and their test images are among them."""
    count = CLIENTS * images
    names = [f"class {k}" for k in range(CLASSES)]
    if not (folder / "store").exists():
        write_images(folder / "store", examples(count, size), (*size, 3), names, "noise")
    store = ImageStore(folder / "store")
    rows = np.split(np.arange(count), CLIENTS)
    counts = np.stack([np.bincount(store.labels[r], minlength=CLASSES) for r in rows])
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randn(count, backbone.width, generator=drawn).to(device)
    return Federation(
        store=store,
        train=rows,
        test=[r[: min(TESTED, images)] for r in rows],
        participating=list(range(CLIENTS)),
        labels=torch.from_numpy(store.labels).to(device),
        priors=torch.from_numpy(counts / counts.sum(1, keepdims=True)).float().to(device),
        domains=["noise"] * CLIENTS,
        tokens=lambda place: tokens,
        classes=tuple(names),
        device=device,
    )


def backbone_of(
    family: str, small: bool, device: torch.device, precision: str, compiles: bool | Literal["auto"]
):
    """Build one of random weights, or for `--small` the checkout's micro model."""
    if small:
        weights = f"workflow/resources/micro_{family}.safetensors"
        settings = {
            "name": f"micro_{family}",
            "weights": weights,
            "precision": precision,
            "compile": compiles,
        }
        return load_backbone(LIBRARIES[family], settings, device)
    torch.manual_seed(0)
    if family == "vit":
        model = timm.create_model("vit_base_patch16_224", num_classes=0)
        return FrozenViT(model, device, precision, compile_setting=compiles)
    import open_clip

    from fedloom.backbones.clip.model import FrozenCLIP

    name = "ViT-B-16"
    parts = open_clip.create_model(name), open_clip.get_tokenizer(name), name
    return FrozenCLIP(*parts, device, precision, compile_setting=compiles)


def task_of(name: str, backbone, data: Federation, epochs: int, batch: int) -> tuple[Task, object]:
    """Build a method's task, as a job does, and load its hooks."""
    method = manifest.find_method(name)
    training = method.merge_training({"epochs": epochs, "batch_size": batch})
    prototypes = None
    if "prototypes" in method.needs:
        shape = backbone.depth, CLASSES
        prototypes = WarmStart(
            mean=torch.randn(*shape, backbone.width, device=data.device),
            spread=torch.ones(shape, device=data.device),
            count=torch.full((CLASSES,), 10, device=data.device),
        )
    task = Task(
        seed=0,
        options=SimpleNamespace(**method.complete_options({})),
        training=TrainingOptions(**training, schedule_rounds=100),
        backbone=backbone,
        data=data,
        clients_per_round=COHORT,
        declared=method_facts(method, method.complete_options({})),
        warm_start=prototypes,
    )
    return task, loader.load_hooks(method)


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(task: Task, hooks, count: int) -> tuple[list[float], State]:
    """Time `count` rounds in a row and the one before them, and return the last state."""
    state, found = initial_state(task, hooks), []
    for number in range(1, count + 2):
        wait(task.data.device)
        started = time.perf_counter()
        state, _ = train_round(task.at(number), hooks, state)
        wait(task.data.device)
        found.append(time.perf_counter() - started)
    return found, state


def operations(task: Task, hooks, images: int) -> float:
    """Count a round's operations by rounds of few images or steps, and by what they grow by.

    An image costs so much in a pass before the training, and so much in each of its epochs. Where
    the backbone reads no images but prompts, a step costs so much.
    """
    epochs, batch = task.training.epochs, task.training.batch_size
    if task.declared.features_only:
        return epochs * -(-images // batch) * _counted(task, hooks, batch, 1)
    one, two = (_counted(task, hooks, 2, epochs) for epochs in (1, 2))
    return images / 2 * (one + (epochs - 1) * (two - one))


def _counted(task: Task, hooks, images: int, epochs: int) -> int:
    """Count the operations of a round; every client has this number of images, all in a batch."""
    with FlopCounterMode(display=False) as counter:
        _short_round(task, hooks, images, epochs)
    return counter.get_total_flops()


def work_of_a_step(task: Task, hooks) -> Work:
    """Count what a device does in a step: the second epoch of one batch, beside the first alone.

    Bytes grow in proportion to the images, except for a constant part (weights, prompts). So they
    are counted with 2 and 4 images a client, and extended to the batch. Methods that read only
    features are counted with a whole batch.
    """
    if task.declared.features_only:
        return _work_of_second_epoch(task, hooks, task.training.batch_size)
    two, four = (_work_of_second_epoch(task, hooks, images) for images in (2, 4))
    batches = (task.training.batch_size - 2) / 2
    return Work(
        operators=four.operators,
        bytes=round(two.bytes + batches * (four.bytes - two.bytes)),
        copies=four.copies,
        copied_bytes=round(two.copied_bytes + batches * (four.copied_bytes - two.copied_bytes)),
    )


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Compute frozen blocks by the operators that a GPU uses."""
    with (
        mock.patch.object(blocks, "is_bf16_on_cpu", lambda x: False),
        mock.patch.object(block_pass, "is_bf16_on_cpu", lambda x: False),
        mock.patch.object(blocks, "_library_is_faster", lambda tokens: False),
    ):
        yield


def _work_of_second_epoch(task: Task, hooks, images: int) -> Work:
    """Return the work of a second epoch of one batch of this many images a client."""
    one, two = (count_work(partial(_short_round, task, hooks, images, epochs)) for epochs in (1, 2))
    return Work(
        operators=two.operators - one.operators,
        bytes=two.bytes - one.bytes,
        copies=two.copies - one.copies,
        copied_bytes=two.copied_bytes - one.copied_bytes,
    )


def _short_round(task: Task, hooks, images: int, epochs: int) -> None:
    """Train a round in which every client has this number of images, all in a batch."""
    data = copy(task.data)  # with the images that are on the device already
    data.train = [rows[:images] for rows in data.train]
    training = replace(task.training, epochs=epochs)
    short = replace(task, data=data, training=training)

    # what is compiled would not be counted
    with torch.compiler.set_stance("force_eager"):
        train_round(short.at(1), hooks, initial_state(short, hooks))


def peak(device: torch.device) -> float:
    """Measure operations per second of a large product in bfloat16."""
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        wait(device)
        started = time.perf_counter()
        torch.mm(a, b)
        wait(device)
        times.append(time.perf_counter() - started)
    return 2 * 8192**3 / statistics.median(times[3:])


def trace(task: Task, hooks, state: State, rows: int) -> str:
    """Tell where the time of a round goes, by torch's profiler."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        train_round(task.at(100), hooks, state)
        wait(task.data.device)
    table = profile.key_averages()
    return "\n".join(
        table.table(sort_by=by, row_limit=rows, max_name_column_width=60)
        for by in ("self_cuda_time_total", "self_cpu_time_total")
    )


def measure(name: str, task: Task, hooks, given: argparse.Namespace, limit: float) -> str:
    """Return a method's line of the table."""
    gpu = task.data.device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    (first, *times), state = seconds(task, hooks, given.rounds)
    memory = torch.cuda.max_memory_allocated() / 1e9 if gpu else float("nan")
    started = time.perf_counter()
    evaluate(task.at(1), hooks, state)
    evaluation, median = time.perf_counter() - started, statistics.median(times)
    count = operations(task, hooks, len(task.data.train[0]))
    if given.profile:
        given.profile.mkdir(parents=True, exist_ok=True)
        (given.profile / f"{name}.txt").write_text(trace(task, hooks, state, 25))
    return (
        f"| {name} | {first:.2f} | {median:.2f} | {evaluation:.2f} | {count / 1e12:.3g} "
        f"| {count / median / limit:.1%} | {memory:.1f} |"
    )


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--small", action="store_true", help="micro models, few images")
    parser.add_argument("--count", action="store_true", help="count operations, and time nothing")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--compile", default="auto", choices=COMPILE, help="as study.compile")
    parser.add_argument("--rounds", type=int, default=2, help="timed, after one that is not")
    parser.add_argument("--epochs", type=int, help="fewer than 5, for a look")
    parser.add_argument("--folder", type=Path, help="where the image store is kept")
    parser.add_argument("--profile", type=Path, help="folder for a trace of every method")
    given = parser.parse_args()
    sizes = SMALL if given.small else {"images": IMAGES, "batch": BATCH, "epochs": EPOCHS}
    epochs = given.epochs or sizes["epochs"]
    device = prepare_torch(1 if given.small else torch.get_num_threads(), given.precision)
    gpu = device.type == "cuda"
    limit = peak(device) if gpu else float("nan")
    where = torch.cuda.get_device_name() if gpu else "CPU"
    print(f"{where}, {given.precision}, torch {torch.__version__}, bf16 {limit / 1e12:.0f} TFLOP/s")
    if given.count:
        print("\n| method | TFLOP a round | a step: operators | GB | copies | GB copied |")
        print("|---|---|---|---|---|---|", flush=True)
    else:
        print("\n| method | first round, s | round, s | evaluation, s | TFLOP | of bf16 | GB |")
        print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        loaded = {}
        for name in given.methods:
            method = manifest.find_method(name)
            family = str(method.family)
            folder = (given.folder or Path(temporary)) / family
            folder.mkdir(parents=True, exist_ok=True)
            if family not in loaded:
                loaded.clear()
                backbone = backbone_of(
                    family, given.small, device, given.precision, COMPILE[given.compile]
                )
                size = (1, 1) if method.features_only else backbone.pixels.size
                images = sizes["images"]
                if given.count:  # counting needs no more
                    images = sizes["batch"] if method.features_only else 4
                loaded[family] = (
                    backbone,
                    federation(folder, images, backbone, size, device),
                )
            backbone, data = loaded[family]
            task, hooks = task_of(name, backbone, data, epochs, sizes["batch"])
            if given.count:
                count = operations(task, hooks, sizes["images"])
                with as_on_a_gpu():
                    work = work_of_a_step(task, hooks)
                print(
                    f"| {name} | {count / 1e12:.3g} | {work.operators} | {work.bytes / 1e9:.3g} "
                    f"| {work.copies} | {work.copied_bytes / 1e9:.3g} |",
                    flush=True,
                )
            else:
                print(measure(name, task, hooks, given, limit), flush=True)


if __name__ == "__main__":
    main()
