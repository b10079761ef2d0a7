"""What each part of the CPU engine saves: the same work with and without it, in one process.

    PYTHONPATH=workflow .venv/bin/python benchmarks/engine.py [rounds] [text] [evaluation] [images]
    PYTHONPATH=workflow .venv/bin/python benchmarks/engine.py empty

On images of noise, the micro backbones and one thread. Both arms run in turn; printed are medians
of CPU seconds and of their ratios. `empty` prints milliseconds per client of rounds in which a
client does one step on one cached feature, and with --profile where they go.
"""

import argparse
import cProfile
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fedloom.backbones import blocks
from fedloom.backbones.backbone import Pixels, load_backbone
from fedloom.config.settings import LIBRARIES
from fedloom.data.federation import Federation
from fedloom.data.store import Example, ImageStore, write_images
from fedloom.federated import groups
from fedloom.federated.build_task import method_facts
from fedloom.federated.evaluate import evaluate
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.task import Task, TrainingOptions, WarmStart
from fedloom.hooks import loader, manifest
from fedloom.machine import memory
from fedloom.machine.device import prepare_torch

Arm = Callable[[], Any]  # returns a context in which a part of the engine is off


def federation(
    folder: Path, clients: int, images: int, tested: int, classes: int, shape: tuple[int, int, int]
) -> Federation:
    """Make clients with this many training and test images; images and features are noise."""
    folder.mkdir(parents=True, exist_ok=True)
    count = clients * (images + tested)
    rng = np.random.default_rng(0)

    def examples() -> Iterator[Example]:
        for k in range(count):
            yield Example(rng.integers(0, 256, shape, np.uint8), k % classes, k == 0, "noise")

    names = [f"class {k}" for k in range(classes)]
    write_images(folder / "store", examples(), shape, names, "noise")
    store = ImageStore(folder / "store")
    rows = np.split(np.arange(count), clients)
    features = torch.nn.functional.normalize(torch.randn(count, 96), dim=-1)
    return Federation(
        store=store,
        train=[r[:images] for r in rows],
        test=[r[images:] for r in rows],
        participating=list(range(clients)),
        labels=torch.from_numpy(store.labels),
        priors=torch.full((clients, classes), 1 / classes),
        domains=["noise"] * clients,
        tokens=lambda block: features,
        classes=tuple(names),
    )


def task_of(name: str, data: Federation, cohort: int, batch: int, **options: Any) -> tuple:
    """Build a method's task on the micro backbone of its family, and load its hooks."""
    method = manifest.find_method(name)
    weights = f"workflow/resources/micro_{method.family}.safetensors"
    settings = {"name": f"micro_{method.family}", "weights": weights}
    backbone: Any = load_backbone(LIBRARIES[str(method.family)], settings)
    if method.family == "clip":  # of the width of its features
        drawn = torch.randn(len(data.labels), backbone.encode(["a"]).shape[1])
        unit = torch.nn.functional.normalize(drawn, dim=-1)
        data.tokens = lambda block: unit
    shape = getattr(backbone, "depth", 1), data.num_classes
    task = Task(
        seed=0,
        options=SimpleNamespace(**method.complete_options(options)),
        training=TrainingOptions(
            **method.merge_training({"epochs": 1, "batch_size": batch}), schedule_rounds=1
        ),
        backbone=backbone,
        data=data,
        clients_per_round=cohort,
        declared=method_facts(method, method.complete_options(options)),
        warm_start=WarmStart(
            mean=torch.randn(*shape, backbone.width),
            spread=torch.ones(shape),
            count=torch.ones(data.num_classes, dtype=torch.int64),
        ),
    )
    return task.at(1), loader.load_hooks(method)


def every_token() -> Any:
    """Let the last block compute all tokens."""

    def whole(block: Any, tokens: torch.Tensor, read: Any, mask: Any = None) -> torch.Tensor:
        return (block(tokens) if mask is None else block(tokens, attn_mask=mask))[:, read]

    return patch.object(blocks, "read_block", whole)


@contextmanager
def written_twice() -> Iterator[None]:
    """Let torch fill memory that is overwritten anyway, as its deterministic mode does."""
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        deterministic.fill_uninitialized_memory = False


def all_clients() -> Any:
    """Train all clients of a round as one batch, and evaluate 256 images at once."""
    wide = memory.BatchLimits(floats=2**62)
    stack = ExitStack()
    for name in ("max_clients", "max_images_per_pass"):
        real = getattr(memory, name)
        widened = lambda *given, real=real, **_: real(*given[:2], limits=wide)  # noqa: E731
        stack.enter_context(patch.object(memory, name, widened))
    return stack


def eight_clients() -> Any:
    """Evaluate eight clients at once, whatever number of images they have, 256 images at once."""
    stack = ExitStack()
    stack.enter_context(all_clients())
    stack.enter_context(patch.object(groups, "clients_evaluated_at_once", lambda *given: 8))
    fixed = lambda sizes, width, images: groups.equal_groups(len(sizes), width)  # noqa: E731
    stack.enter_context(patch.object(groups, "groups_by_images", fixed))
    return stack


def all_off() -> Any:
    """Turn off every part that affects a round."""
    stack = ExitStack()
    for off in (every_token, written_twice, all_clients):
        stack.enter_context(off())
    return stack


def compare(title: str, work: Callable[[], object], off: Arm, pairs: int) -> None:
    """Print a line: CPU seconds without and with a part of the engine, and their ratio."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs + 1):
        for on in (False, True):
            with ExitStack() as stack:
                if not on:
                    stack.enter_context(off())
                started = time.process_time()
                work()
                if number:  # the first pair warms up
                    times[on].append(time.process_time() - started)
    ratio = statistics.median(a / b for a, b in zip(times[False], times[True], strict=True))
    without, with_it = (statistics.median(times[on]) for on in (False, True))
    print(f"| {title} | {without:.3f} | {with_it:.3f} | {ratio:.2f} |", flush=True)


def rounds(folder: Path, pairs: int) -> None:
    """Compare rounds of ten clients of 64 images with each part off, and with all."""
    data = federation(folder, 10, 64, 1, 10, (32, 32, 1))
    parts = {
        "last block": every_token,
        "fill": written_twice,
        "images in flight": all_clients,
        "all": all_off,
    }
    for name in ("fedvpt", "pep_fedpt"):
        for batch in (4, 16, 64):
            task, hooks = task_of(name, data, 10, batch)
            state = initial_state(task, hooks)
            for part, off in parts.items():
                work = lambda: train_round(task, hooks, state)  # noqa: B023, E731
                compare(f"{name}, batch {batch}: {part}", work, off, pairs)


def texts(folder: Path, pairs: int) -> None:
    """Compare rounds of prompts for a CLIP's classes, the last block at the EOTs or in full."""
    for classes in (10, 100):
        data = federation(folder / f"{classes}", 10, 32, 1, classes, (1, 1, 3))
        for name in ("promptfl", "fedpha"):
            task, hooks = task_of(name, data, 10, 16)
            state = initial_state(task, hooks)
            work = lambda: train_round(task, hooks, state)  # noqa: B023, E731
            compare(f"{name}, {classes} classes: last block", work, every_token, pairs)


def evaluation(folder: Path, pairs: int) -> None:
    """Compare evaluations of 60 clients, by images and by clients, and the global test after it."""
    for tested in (5, 20, 100):
        data = federation(folder / f"{tested}", 60, 1, tested, 10, (32, 32, 1))
        task, hooks = task_of("fedvpt", data, 10, 16)
        state = initial_state(task, hooks)
        work = lambda: evaluate(task, hooks, state)  # noqa: B023, E731
        compare(f"60 clients of {tested} images: cohorts", work, eight_clients, pairs)
    both = lambda: evaluate(task, hooks, state, global_test=True)  # noqa: E731
    told_apart = partial(patch.object, hooks, "takes", lambda *given: True)
    compare("the same and the global test: answers", both, told_apart, pairs)


def images(folder: Path, pairs: int) -> None:
    """Compare reading 320 images of 224 px, and normalising 64 of them, with copies on the way."""
    data = federation(folder, 10, 64, 1, 10, (224, 224, 3))
    rows = np.random.default_rng(0).integers(0, 650, 320)

    def copied(store: ImageStore, index: np.ndarray) -> np.ndarray:
        chunk = np.searchsorted(store._starts, index, side="right") - 1
        pixels = np.empty((len(index), *store.shape), np.uint8)
        for number in np.unique(chunk):
            wanted = chunk == number
            pixels[wanted] = store._chunks[number][index[wanted] - store._starts[number]]
        return pixels

    off = lambda: patch.object(ImageStore, "images", copied)  # noqa: E731
    compare("320 images of 224 px: read", lambda: data.store.images(rows), off, pairs)
    some = torch.from_numpy(data.store.images(rows[:64]))
    preprocessing = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic"}
    pixels = Pixels((224, 224), 3, preprocessing)

    def plain(own: Pixels, given: torch.Tensor) -> torch.Tensor:
        return (given.movedim(-1, 1).float() / 255 - own._mean) / own._std

    off = lambda: patch.object(Pixels, "__call__", plain)  # noqa: E731
    compare("64 images of 224 px: normalise", lambda: pixels(some), off, pairs)


def classes(folder: Path, pairs: int) -> None:
    """Print milliseconds per class and the peak of memory of FedPHA's rounds, each in a process."""
    print("| classes | s per round | ms per class | peak MB |\n|---|---|---|---|")
    for count in (100, 300, 1000):
        command = [sys.executable, __file__, "--classes", str(count), "--pairs", str(pairs)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="")


def _fedpha(folder: Path, count: int, pairs: int) -> None:
    """Print the line of one number of classes."""
    data = federation(folder, 10, 32, 1, count, (1, 1, 3))
    task, hooks = task_of("fedpha", data, 10, 32)
    state, times = initial_state(task, hooks), []
    for _ in range(pairs + 1):
        started = time.process_time()
        train_round(task, hooks, state)
        times.append(time.process_time() - started)
    median, peak = statistics.median(times[1:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"| {count} | {median:.2f} | {1000 * median / count:.2f} | {peak / 1024:.0f} |")


def empty(folder: Path, pairs: int, profiled: bool) -> None:
    """Print milliseconds per client of rounds with next to no work, and of their evaluation."""
    data = federation(folder, 1000, 1, 1, 10, (1, 1, 1))
    print("| clients in a round | ms per client | ms per client evaluated |\n|---|---|---|")
    for cohort in (1, 10, 100, 1000):
        task, hooks = task_of("head_tuning", data, cohort, 1)
        state, found = initial_state(task, hooks), []
        for _ in range(pairs + 1):
            started = time.process_time()
            after, _ = train_round(task, hooks, state)
            middle = time.process_time()
            evaluate(task, hooks, after)
            found.append((middle - started, time.process_time() - middle))
        trained, tested = (1000 * statistics.median(t) for t in zip(*found[1:], strict=True))
        print(f"| {cohort} | {trained / cohort:.3f} | {tested / 1000:.3f} |", flush=True)
        if profiled:
            with cProfile.Profile() as profile:
                train_round(task, hooks, state)
            pstats.Stats(profile).sort_stats("tottime").print_stats(15)


PARTS = {"rounds": rounds, "text": texts, "evaluation": evaluation, "images": images}


def main() -> None:
    """Print Markdown tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, "classes", "empty", "all"], default="all"
    )
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs per line")
    parser.add_argument("--profile", action="store_true", help="where an empty round's time goes")
    parser.add_argument("--classes", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    prepare_torch(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.classes:
            _fedpha(folder, given.classes, given.pairs)
        elif "empty" in given.parts:
            empty(folder, given.pairs, given.profile)
        elif "classes" in given.parts:
            classes(folder, given.pairs)
        else:
            print("| what | without, s | with, s | ratio |\n|---|---|---|---|")
            for part in PARTS if "all" in given.parts else given.parts:
                PARTS[part](folder / part, given.pairs)


if __name__ == "__main__":
    main()
