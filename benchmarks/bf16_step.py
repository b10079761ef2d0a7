"""A step of FedVPT on a CPU core in float32 and in bf16: their ratio, and what takes bf16's time.

    taskset -c 1 env PYTHONPATH=workflow .venv/bin/python benchmarks/bf16_step.py

A step is a forward and a backward pass of one batch through a frozen ViT-S/16 of random weights at
224 pixels, with ten prompts and a head that are trained. Steps in both formats take turns, in
processor seconds on one thread. The script also times a product of matrices alone, because products
take most of a step. Torch's profiler tells in which operators a step in bf16 spends its time.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F

from fedloom.backbones.vit import FrozenViT
from fedloom.machine.device import prepare_cpu

PRECISIONS = ("float32", "bf16")
BACKBONE = "vit_small_patch16_224"
PROMPTS = 10
CLASSES = 10
# of its tokens, a class token and the prompts among them
TOKENS = 1 + 14 * 14 + PROMPTS
WIDTH = 384

# what operators do; all that are not here are "other"
KINDS = {
    "products of layers": ("mm", "addmm", "mkldnn_convolution"),
    "products of attention": ("bmm",),
    "casts and copies": ("copy_",),
    "concatenations": ("cat",),
    "softmax": ("_softmax", "_softmax_backward_data"),
    "GELU": ("gelu", "gelu_backward"),
    "layer norms": ("native_layer_norm", "native_layer_norm_backward"),
    "additions and scales": ("add", "add_", "mul"),
}


def processor_seconds(function: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    started = time.process_time()
    function()
    return time.process_time() - started


def product_speed(batch: int, number_format: torch.dtype) -> float:
    """Return the operations per second of the first product of an MLP, for a batch of images.

    It is a median of nine products, after one that is not timed.
    """
    tokens = torch.randn(batch * TOKENS, WIDTH).to(number_format)
    matrix = torch.randn(WIDTH, 4 * WIDTH).to(number_format)
    seconds = [processor_seconds(lambda: tokens @ matrix) for _ in range(10)]
    return 2 * tokens.numel() * 4 * WIDTH / statistics.median(seconds[1:])


def make_step(batch: int, precision: str) -> Callable[[], None]:
    """Return a function that does a step on a batch of noise; all precisions get equal numbers."""
    torch.manual_seed(0)
    vit = FrozenViT(timm.create_model(BACKBONE, num_classes=0), "cpu", precision)
    images = torch.randint(0, 256, (1, batch, *vit.pixels.size, 3), dtype=torch.uint8)
    labels = torch.randint(0, CLASSES, (batch,))
    prompts = torch.randn(1, PROMPTS, vit.width, requires_grad=True)
    head = torch.randn(1, CLASSES, vit.width, requires_grad=True)

    def step() -> None:
        logits = vit.forward_prompted(images, prompts, head)[0]
        torch.autograd.grad(F.cross_entropy(logits, labels), (prompts, head))

    return step


def shares_of_time(step: Callable[[], None]) -> dict[str, float]:
    """Return the share of a step's time that each kind of operator takes itself."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()

    times = {entry.key: entry.self_cpu_time_total for entry in profile.key_averages()}
    total = sum(times.values())
    shares = {
        kind: sum(times.get(f"aten::{name}", 0) for name in names) / total
        for kind, names in KINDS.items()
    }
    shares["other"] = 1 - sum(shares.values())
    return shares


def main() -> None:
    """Print the speed of products, the medians of both steps, their ratio, and bf16's shares."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=5, help="timed, after one that is not")
    given = parser.parse_args()
    prepare_cpu(1)

    # products alone
    float32_speed = product_speed(given.batch, torch.float32)
    bf16_speed = product_speed(given.batch, torch.bfloat16)
    print(
        f"products: {float32_speed / 1e9:.0f} GFLOP/s in float32, {bf16_speed / 1e9:.0f} in bf16, "
        f"ratio {bf16_speed / float32_speed:.2f}"
    )

    # steps in turn
    steps = [make_step(given.batch, precision) for precision in PRECISIONS]
    # the first pair only warms up
    pairs = []
    for _ in range(given.pairs + 1):
        pairs.append([processor_seconds(step) for step in steps])
    pairs = pairs[1:]
    float32_seconds, bf16_seconds = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(in_float32 / in_bf16 for in_float32, in_bf16 in pairs)
    print(
        f"step: {float32_seconds:.2f} CPU s in float32, {bf16_seconds:.2f} in bf16, "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})\n"
    )

    print("| kind of operator | share of the step in bf16 |")
    print("|---|--:|")
    for kind, share in shares_of_time(steps[1]).items():
        print(f"| {kind} | {share:.1%} |")


if __name__ == "__main__":
    main()
