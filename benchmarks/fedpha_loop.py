"""FedPHA's rounds against the loop that CLIP's prompt learners are usually written as, in one run.

    PYTHONPATH=workflow .venv/bin/python benchmarks/fedpha_loop.py

The usual loop trains clients one after the other; in every step it runs the images through the
frozen image tower, all three prompts of every class through the text tower in 77 places each, and
computes the projection. Ours trains the clients as one batch, reads image features from the cache,
packs the prompts, and projects once a round. Both use the same weights, batches, loss (the paper's
variant) and SGD, and neither augments. A round is all steps of all clients and the average;
medians, one thread, in seconds of the processor, so that other jobs count little. "apart" is by how
much the two differ after it: the mean loss, and the next global context as a share of how far it
moved. "cache" is what ours pays once per data set and backbone: the features of the same images.

On the micro CLIP a round is that of ten clients with disjoint glyphs and 8 shots. On a ViT-B-16 of
random weights it is of two clients with one batch of 32 noise images each, and 100 classes: what a
step takes does not depend on what the weights and images are. The loop needs 12 GB there.
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
import torch.nn.functional as F
from clip_text import usual_text
from torch import Tensor

from fedloom.backbones.clip import model as clip
from fedloom.common.device import prepare_torch
from fedloom.common.receipts import check_receipt
from fedloom.data import federation, sources
from fedloom.data.partition import divide, write_partition
from fedloom.data.store import ImageStore
from fedloom.federated.round import initial_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import Task
from fedloom.methods import defaults, loader, manifest
from fedloom.methods.calls import Hooks

MICRO = {"name": "micro_clip", "weights": "workflow/resources/micro_clip.safetensors"}
GLYPHS = {"classes": 100, "draws": 4, "test_fraction": 0.25}
Result = TypeVar("Result")
LARGE = "ViT-B-16-quickgelu"
PARTITION = {"scheme": "disjoint", "clients": 10, "held_out": 0, "shots": 8}


def projection(context: Tensor, rho: float) -> Tensor:
    """Return the projection [d, d] on the weakest of all d directions of [T, d] (Eq. 8-10)."""
    width = context.shape[1]
    rows = torch.linalg.svd(context, full_matrices=False).Vh
    basis = torch.linalg.qr(rows.mT, mode="complete").Q
    v2 = basis[:, width - int((1 - rho) * width + 1e-9) :]
    return v2 @ v2.mT


def usual_round(task: Task, received: Tensor, local: list[Tensor]) -> tuple[list, Tensor]:
    """Train a round as the usual loop does: every client's losses, and the next global context.

    Args:
        received: the global context [T, d].
        local: each client's own context [L, d].
    """
    model, data, options = task.backbone.model, task.data, task.options
    training, all_losses, contexts = task.training, [], []
    for client, own in zip(data.participating, local, strict=True):
        context, own = (x.clone().requires_grad_() for x in (received, own))
        optimizer = torch.optim.SGD(
            [context, own],
            training.lr,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
        losses = []
        stream = (task.seed, task.round, client, 0)
        for rows in federation.shuffled_batches(
            data.train[client], training.batch_size, training.epochs, *stream
        ):
            pixels = task.backbone.pixels(torch.from_numpy(data.store.images(rows).copy()))
            labels = data.labels[torch.from_numpy(rows)]
            images = model.encode_image(pixels, normalize=True)
            projected = own @ projection(received, options.rho)
            of_local, of_global, of_projected = (
                usual_text(model, x, data.classes) for x in (own, context, projected)
            )
            scale = model.logit_scale.exp()
            loss = F.cross_entropy(scale * images @ of_local.T, labels)
            loss = loss + F.cross_entropy(scale * images @ of_global.T, labels)
            loss = loss + F.mse_loss(of_local, of_projected)
            apart = (of_local - of_global).norm(dim=-1)
            loss = loss + F.relu(options.alpha - apart).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        all_losses.append(losses)
        contexts.append(len(data.train[client]) * context.detach())
    total = sum(len(data.train[client]) for client in data.participating)
    return all_losses, torch.stack(contexts).sum(0) / total


def our_round(task: Task, hooks: Hooks, state: State) -> tuple[float, Tensor]:
    """Train a round as FedLoom does: the clients' mean loss, and the next global context."""
    after, row = train_round(task, hooks, state)
    return row["train_loss"], after.server["params"]["context"]


def seconds(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the processor's seconds for one call of `work`, and its result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def glyphs(folder: Path) -> federation.Federation:
    """Divide the glyphs over ten clients; files go into `folder`."""
    file = folder / "images.arrow"
    sources.build("glyphs", GLYPHS, file)
    store = ImageStore(file)
    table = divide(store.labels, store.test, store.domains, PARTITION, seed=0)
    write_partition(folder / "partition.parquet", table)
    names = check_receipt(file)["classes"]
    return federation.load(store, folder / "partition.parquet", names, torch.device("cpu"))


def noise(clients: int, images: int, classes: int) -> federation.Federation:
    """Return clients that have `images` noise images of 224 x 224 pixels each."""
    count, rng = clients * images, np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, 224, 224, 3), np.uint8)
    rows = np.arange(count).reshape(clients, images)
    return federation.Federation(
        store=cast(ImageStore, SimpleNamespace(images=lambda index: pixels[index])),
        train=list(rows),
        test=list(rows),
        participating=list(range(clients)),
        labels=torch.from_numpy(rng.integers(0, classes, count)),
        priors=torch.full((clients, classes), 1 / classes),
        domains=[""] * clients,
        classes=tuple(f"class number {k}" for k in range(classes)),
    )


def compare(backbone: clip.FrozenCLIP, data: federation.Federation, name: str, pairs: int) -> str:
    """Return a line of the table: `pairs` timed rounds of each kind."""
    method = manifest.find("fedpha")
    hooks = loader.load_hooks(method, defaults)
    rows = np.sort(np.concatenate([data.train[k] for k in data.participating]))
    features = torch.zeros(int(rows.max()) + 1, backbone.encode(["a"]).shape[1])

    def encode() -> None:
        for part in np.array_split(rows, -(-len(rows) // 128)):
            images = torch.from_numpy(data.store.images(part))
            features[part] = backbone.compute_cache(images, "features")["final"]

    caching, _ = seconds(encode)
    data.tokens = lambda place: features
    task = Task(
        seed=0,
        options=SimpleNamespace(**method.options({}, method.name)),
        training=SimpleNamespace(**method.training(), rounds=1),
        backbone=backbone,
        data=data,
        clients_per_round=len(data.participating),
        method=method.name,
        features_only=method.features_only,
        encodes=method.encodes,
    ).at(1)
    start = initial_state(task, hooks)
    context = start.server["params"]["context"]
    own = [hooks.init_client(task=task.at(0), client=k)["local"] for k in data.participating]
    times: dict[str, list[float]] = {"usual": [], "ours": []}
    losses, loss, usual_next, our_next = [[]], 0.0, context, context
    for _ in range(pairs):
        took, (losses, usual_next) = seconds(lambda: usual_round(task, context, own))
        times["usual"].append(took)
        took, (loss, our_next) = seconds(lambda: our_round(task, hooks, start))
        times["ours"].append(took)
    means = [float(np.mean(of_client)) for of_client in losses]
    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
    usual, ours = (statistics.median(taken) for taken in times.values())
    steps = sum(map(len, losses))
    apart = abs(float(np.mean(means)) - loss)
    if apart > 1e-3:
        raise SystemExit(f"{name}: the losses differ by {apart:.1e}: not the same computation")
    moved = (our_next - usual_next).norm() / (usual_next - context).norm()
    return (
        f"| {name} | {len(means)} | {steps} | {usual:.1f} | {ours:.1f} | {ratio:.1f} "
        f"| {apart:.1e} | {moved:.1e} | {caching:.1f} |"
    )


def main() -> None:
    """Print a Markdown table of ratios."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="timed pairs on the micro CLIP")
    parser.add_argument("--large-pairs", type=int, default=1, help="timed pairs on the ViT-B-16")
    parser.add_argument("--classes", type=int, default=100, help="on the ViT-B-16")
    parser.add_argument("--clients", type=int, default=2, help="on the ViT-B-16")
    parser.add_argument("--images", type=int, default=32, help="of each client, on the ViT-B-16")
    args = parser.parse_args()
    prepare_torch(1)
    print(
        "| backbone | clients | steps | usual round, s | ours, s | ratio | loss apart "
        "| context apart | cache, s |\n|---|---|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        micro = clip.load(MICRO)
        print(compare(micro, glyphs(Path(folder)), "micro CLIP", args.pairs), flush=True)
    torch.manual_seed(0)
    large = clip.FrozenCLIP(open_clip.create_model(LARGE), open_clip.get_tokenizer(LARGE), LARGE)
    data = noise(args.clients, args.images, args.classes)
    print(compare(large, data, "ViT-B-16", args.large_pairs))


if __name__ == "__main__":
    main()
