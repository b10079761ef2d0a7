"""Rounds of PromptFL, FedOTP and FedPHA against plain loops over clients: ratios, in one run.

    PYTHONPATH=workflow .venv/bin/python benchmarks/clip_loops.py [promptfl] [fedotp] [fedpha]

FedLoom trains the clients as one batch, reads image features from the cache, packs the prompts, and
projects once a round. The two loops are described in `clip_learners.py`: the usual one, and a
careful one, which has the cache too. All have the same weights, batches, loss and SGD, and none
augments. A round is all steps of all clients, and the average. The three take turns; printed are
medians, for one thread, in CPU seconds, so that other jobs count little. "loss apart" and "context
apart" are the largest differences of the loops from FedLoom: of the clients' mean loss, and of the
next global context as a share of how far it moved. The script ends before it prints a ratio where
one is above its limit. "cache" is what FedLoom and the careful loop pay once per data set and
backbone.

On the micro CLIP a round is that of ten clients with disjoint glyphs and 8 shots. On a ViT-B-16 of
random weights it is of two clients with one batch of 32 noise images each, and the class names of
CIFAR-100: how long a step takes does not depend on weights and images, but does on the length of
the names (`--numbered` has longer ones). The usual loop needs 12 GB there.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast

import numpy as np
import open_clip
import torch
from clip_learners import LEARNERS, careful, plain_round, usual
from clip_text import CLASSES
from torch import Tensor

from fedloom.backbones.clip import loading as clip
from fedloom.common.files import write_table
from fedloom.common.receipts import check_receipt
from fedloom.data import federation, loading, sources
from fedloom.data.partition import divide_dataset
from fedloom.data.store import ImageStore
from fedloom.federated.build_task import method_facts
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import Task, TrainingOptions
from fedloom.hooks import loader, manifest
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine.device import prepare_torch

MICRO = {"name": "micro_clip", "weights": "workflow/resources/micro_clip.safetensors"}
LARGE = "ViT-B-16-quickgelu"
GLYPHS = {"classes": 100, "draws": 4, "test_fraction": 0.25}
NUMBERED = tuple(f"class number {k}" for k in range(100))
PARTITION = {"scheme": "disjoint", "clients": 10, "held_out": 0, "shots": 8, "rest_to_last": False}
# Patches are cached in half precision, of which the usual loop knows nothing.
LOSS_APART, CONTEXT_APART = 1e-3, 1e-2
HEADER = (
    "| method | backbone | clients | steps | usual loop, s | careful loop, s | FedLoom, s "
    "| usual / FedLoom | careful / FedLoom | loss apart | context apart | cache, s |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)
Round = tuple[float, Tensor]  # the clients' mean loss, and the next global context [L, d]
Result = TypeVar("Result")


def our_round(task: Task, hooks: Hooks, state: State) -> Round:
    """Train a round as FedLoom does."""
    after, row = train_round(task, hooks, state)
    return row.train_loss, after.server["params"]["context"]


def seconds(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the processor's seconds for one call of `work`, and its result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def glyphs(folder: Path) -> federation.Federation:
    """Divide the glyphs over ten clients; files go into `folder`."""
    file = folder / "images.arrow"
    sources.build_store("glyphs", GLYPHS, file)
    store = ImageStore(file)
    table = divide_dataset(store.labels, store.test, store.domains, PARTITION, seed=0)
    write_table(folder / "partition.parquet", table)
    names = check_receipt(file)["classes"]
    return loading.load_partition(store, folder / "partition.parquet", names, torch.device("cpu"))


def noise(clients: int, images: int, classes: tuple[str, ...]) -> federation.Federation:
    """Return clients that have `images` noise images of 224 x 224 pixels each."""
    count, rng = clients * images, np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, 224, 224, 3), np.uint8)
    rows = np.arange(count).reshape(clients, images)
    return federation.Federation(
        store=cast(ImageStore, SimpleNamespace(images=lambda index: pixels[index])),
        train=list(rows),
        test=list(rows),
        participating=list(range(clients)),
        labels=torch.from_numpy(rng.integers(0, len(classes), count)),
        priors=torch.full((clients, len(classes)), 1 / len(classes)),
        domains=[""] * clients,
        classes=classes,
    )


def fill_cache(backbone: clip.FrozenCLIP, data: federation.Federation, cache: str) -> None:
    """Compute `features` or `patches` of all training images, which `data` then returns."""
    rows = np.sort(np.concatenate([data.train[k] for k in data.participating]))
    parts = [
        next(
            iter(backbone.compute_cache(torch.from_numpy(data.store.images(part)), cache).values())
        )
        for part in np.array_split(rows, -(-len(rows) // 128))
    ]
    cached = torch.zeros(int(rows.max()) + 1, *parts[0].shape[1:], dtype=parts[0].dtype)
    cached[rows] = torch.cat(parts)
    if cache == "features":
        data.tokens = lambda block: cached
    else:
        data.patches = lambda: cached


def make_task(backbone: clip.FrozenCLIP, data: federation.Federation, name: str) -> Task:
    """Return a method's task in round 1, in which all clients take part."""
    method = manifest.find_method(name)
    return Task(
        seed=0,
        options=SimpleNamespace(**method.complete_options({})),
        training=TrainingOptions(**method.merge_training(), schedule_rounds=1),
        backbone=backbone,
        data=data,
        clients_per_round=len(data.participating),
        declared=method_facts(method, method.complete_options({})),
    ).at(1)


def arms_of(task: Task, hooks: Hooks) -> tuple[Tensor, dict[str, Callable[[], Round]]]:
    """Return the received context [L, d], and what trains a round from it, by the arm's name."""
    learner, state = LEARNERS[task.method], initial_state(task, hooks)
    received = state.server["params"]["context"]
    clients = task.data.participating
    local = [hooks.init_client(task=task.at(0), client=k).get("local") for k in clients]

    def loop(make: Callable) -> Round:
        return plain_round(task, learner, make(task, learner, received), received, local)

    return received, {
        "usual": lambda: loop(usual),
        "careful": lambda: loop(careful),
        "ours": lambda: our_round(task, hooks, state),
    }


def check_alike(name: str, received: Tensor, rounds: dict[str, Round]) -> tuple[float, float]:
    """Return by how much the loops differ from FedLoom at most.

    Args:
        received: the global context [L, d] before the round.
        rounds: what each arm trained, FedLoom as "ours".

    Returns:
        The difference of the losses; and of the next contexts, as a share of how far it moved.

    Raises:
        SystemExit: an arm trained something else; it is named.
    """
    our_loss, our_context = rounds["ours"]
    moved = (our_context - received).norm()
    apart = {
        arm: (abs(loss - our_loss), float((context - our_context).norm() / moved))
        for arm, (loss, context) in rounds.items()
        if arm != "ours"
    }
    for arm, (loss, context) in apart.items():
        if not (loss <= LOSS_APART and context <= CONTEXT_APART):  # also where one is NaN
            raise SystemExit(
                f"{name}: the {arm} loop differs from FedLoom by {loss:.1e} in the loss and "
                f"{context:.1e} in the context: not the same computation"
            )
    losses, contexts = zip(*apart.values(), strict=True)
    return max(losses), max(contexts)


def compare(task: Task, backbone: str, caching: float, pairs: int) -> str:
    """Return a line of the table.

    Args:
        backbone: its name in the table.
        caching: seconds that the cache took.
        pairs: timed rounds of each arm.
    """
    hooks = loader.load_hooks(manifest.find_method(task.method))
    received, arms = arms_of(task, hooks)
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    apart = (0.0, 0.0)
    for _ in range(pairs):
        rounds: dict[str, Round] = {}
        for arm, train in arms.items():
            took, rounds[arm] = seconds(train)
            times[arm].append(took)
        apart = check_alike(task.method, received, rounds)
    ratios = [
        statistics.median(a / b for a, b in zip(times[arm], times["ours"], strict=True))
        for arm in ("usual", "careful")
    ]
    medians = [statistics.median(taken) for taken in times.values()]
    data, training = task.data, task.training
    counts = [-(-len(data.train[k]) // training.batch_size) for k in data.participating]
    cells = [task.method, backbone, str(len(counts)), str(training.epochs * sum(counts))]
    cells += [f"{value:.1f}" for value in (*medians, *ratios)]
    cells += [f"{value:.0e}" for value in apart] + [f"{caching:.1f}"]
    return f"| {' | '.join(cells)} |"


def compare_all(
    methods: list[str],
    backbone: clip.FrozenCLIP,
    data: federation.Federation,
    name: str,
    pairs: int,
) -> None:
    """Print a line for each method on a backbone, whose name in the table is `name`."""
    caching = {
        cache: seconds(lambda: fill_cache(backbone, data, cache))[0]  # noqa: B023
        for cache in {LEARNERS[method].cache for method in methods}
    }
    for method in methods:
        task = make_task(backbone, data, method)
        print(compare(task, name, caching[LEARNERS[method].cache], pairs), flush=True)


def main() -> None:
    """Print a Markdown table of ratios."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("methods", nargs="*", help=f"of {', '.join(LEARNERS)}; default: all")
    parser.add_argument("--pairs", type=int, default=3, help="timed on the micro CLIP; 0: none")
    parser.add_argument("--large-pairs", type=int, default=1, help="the same on the ViT-B-16")
    parser.add_argument("--clients", type=int, default=2, help="on the ViT-B-16")
    parser.add_argument("--images", type=int, default=32, help="of each client, on the ViT-B-16")
    parser.add_argument("--numbered", action="store_true", help="longer names on the ViT-B-16")
    args = parser.parse_args()
    methods = args.methods or [*LEARNERS]
    if unknown := set(methods) - set(LEARNERS):
        parser.error(f"no such method: {', '.join(sorted(unknown))}; known: {', '.join(LEARNERS)}")
    prepare_torch(1)
    print(HEADER, flush=True)
    if args.pairs:
        with tempfile.TemporaryDirectory() as folder:
            micro, data = clip.load(MICRO), glyphs(Path(folder))
            compare_all(methods, micro, data, "micro CLIP", args.pairs)
    if args.large_pairs:
        torch.manual_seed(0)
        model, tokenizer = open_clip.create_model(LARGE), open_clip.get_tokenizer(LARGE)
        large = clip.FrozenCLIP(model, tokenizer, LARGE)
        names = NUMBERED if args.numbered else CLASSES
        data = noise(args.clients, args.images, names)
        compare_all(methods, large, data, "ViT-B-16", args.large_pairs)


if __name__ == "__main__":
    main()
