"""The plain loop: one client after the other, and the mean of what they trained.

The arm `plain_bf16` computes in bfloat16 by torch's autocast.
"""

import sys

import torch

from peer_arms.model import model_of, train_client
from peer_arms.world import begin


def main() -> None:
    """Train all cases."""
    arm = sys.argv[2]
    pace = begin(arm)
    world = pace.world
    for case in world.cases:
        shared = world.first(case.method)
        model = model_of(world, case.method, world.first(case.method), half=arm.endswith("bf16"))
        for number in range(1, world.rounds + 1):
            pace.start()
            sums = {name: torch.zeros_like(value) for name, value in shared.items()}
            for client in range(world.clients):
                model.load_state_dict(shared)
                train_client(world, model, world.batches(case, number, client))
                for name, value in model.state_dict().items():
                    sums[name] += value
            shared = {name: value / world.clients for name, value in sums.items()}
            pace.stop(case, number, shared)


if __name__ == "__main__":
    main()
