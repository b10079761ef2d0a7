"""Seconds that PFPT's server takes to aggregate a round, on one core.

    PYTHONPATH=workflow python benchmarks/prompt_matching.py [clients ...]

Every client uploads 20 prompts of width 768, made from a pool of 40 by noise: little, about as much
as makes a client open new prompts, and so much that nothing is left of the pool. Seconds are
of the processor, so that other jobs count little.
"""

import sys
import time
from types import SimpleNamespace

import torch

from fedloom.hooks import loader, manifest
from fedloom.machine.device import prepare_torch

WIDTH, POOL, EACH = 768, 40, 20
NOISE = {"together": 0.2, "between": 1.0, "apart": 20.0}  # in deviations of the pool


def draw(clients: int, noise: float, generator: torch.Generator) -> tuple:
    """A pool [n, d] as VPT begins and the clients' prompts [m, n_t, d]."""
    pool = 0.0625 * (2 * torch.rand(POOL, WIDTH, generator=generator) - 1)
    picked = [torch.randperm(POOL, generator=generator)[:EACH] for _ in range(clients)]
    moved = torch.randn(clients, EACH, WIDTH, generator=generator)
    return pool, pool[torch.stack(picked)] + noise * pool.std() * moved


def main() -> None:
    """Print a Markdown table."""
    prepare_torch(1)
    method = manifest.find_method("pfpt")
    loader.load_hooks(method)
    matching, networks = (
        sys.modules[f"fedloom_plugins.pfpt.{name}"] for name in ("matching", "networks")
    )
    generator = torch.Generator().manual_seed(0)
    task = SimpleNamespace(
        backbone=SimpleNamespace(width=WIDTH, device="cpu"),
        options=SimpleNamespace(**method.complete_options({})),
        generator=lambda name: generator,
    )
    print(
        "| clients | prompts | noise | pool before | after | seconds |\n|---|---|---|---|---|---|"
    )
    for clients in [int(word) for word in sys.argv[1:]] or [10, 100]:
        for name, noise in NOISE.items():
            pool, uploaded = draw(clients, noise, generator)
            nets = networks.init_nets(task)
            start = time.process_time()
            after, _ = matching.summarise(task.options, pool, uploaded, nets)
            seconds = time.process_time() - start
            count = clients * EACH
            print(f"| {clients} | {count} | {name} | {POOL} | {len(after)} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
