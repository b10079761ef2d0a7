"""Time FedPHA's projection beside the training that it is part of (FedPHA, Table 3).

    PYTHONPATH=workflow python benchmarks/svd.py

One client's round: 16 shots of 10 classes, batches of 32, 100 classes in all, contexts
of 16 tokens, the text tower of a ViT-B-16 of random weights, image features at hand. Medians, one
thread; a step is the loss and its gradients. A script, not a column of rounds.parquet: clients
train as one batch, so that no client has a separate time, and a timer around a part of a step
would have to wait for the device in every step.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import open_clip
import torch
import torch.nn.functional as F

from fedloom.backbones.clip import model as clip
from fedloom.hooks import loader, manifest
from fedloom.machine.device import prepare_torch

MODEL = "ViT-B-16-quickgelu"
CLASSES, LENGTH, BATCH, STEPS = 100, 16, 32, 5


def _milliseconds(work: Callable[[], object], times: int) -> float:
    """Return the median time of `times` calls of `work`, after one that does not count."""
    taken = []
    for _ in range(times + 1):
        started = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken[1:])


def main() -> None:
    """Print a Markdown table of milliseconds per client and round."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--steps", type=int, default=3, help="timed training steps")
    steps = parser.parse_args().steps
    prepare_torch(1)
    method = manifest.find_method("fedpha")
    plugin = loader.import_plugin(method)
    torch.manual_seed(0)
    backbone = clip.FrozenCLIP(open_clip.create_model(MODEL), open_clip.get_tokenizer(MODEL), MODEL)
    options = SimpleNamespace(**method.complete_options({}))
    classes = [f"class number {k}" for k in range(CLASSES)]
    task = SimpleNamespace(
        options=options, backbone=backbone, data=SimpleNamespace(classes=classes)
    )
    params = {k: 0.02 * torch.randn(1, LENGTH, backbone.width) for k in ("context", "local")}
    params = {k: value.requires_grad_() for k, value in params.items()}
    fixed = params["context"].detach()
    clients = SimpleNamespace(state={"length": torch.tensor([LENGTH])})
    joint = backbone.encode(["a"]).shape[-1]
    images = F.normalize(torch.randn(1, BATCH, joint), dim=-1)
    batch = SimpleNamespace(features=images, labels=torch.arange(BATCH)[None] % 10)
    kept = plugin.directions_kept(options.variant, options.rho, backbone.width)
    received = {"projection": plugin.project_on_weakest(fixed, kept)}

    def step() -> None:
        plugin.loss(task, params, received, clients, batch).mean().backward()

    def project() -> None:
        (params["local"] @ received["projection"]).sum().backward()

    def project_as_released() -> None:
        projection = plugin.released.projection(params["context"], options.rho)
        (params["local"] @ projection).sum().backward()

    training = STEPS * _milliseconds(step, steps)
    parts = {
        "global prompt decomposition, once": _milliseconds(
            lambda: plugin.project_on_weakest(fixed, kept), 20
        ),
        f"local prompt projection, {STEPS} steps": STEPS * _milliseconds(project, 20),
        f"both as released, {STEPS} steps": STEPS * _milliseconds(project_as_released, 20),
    }
    print("| part of a client's round | ms | of training |\n|---|---|---|")
    for name, taken in parts.items():
        print(f"| {name} | {taken:.1f} | {taken / training:.3%} |")
    print(f"| local training, {STEPS} steps | {training:.1f} | |")


if __name__ == "__main__":
    main()
