"""The plain loop: one client after the other, and the mean of what they trained."""

import torch

from peer_arms.model import model_of, train_client
from peer_arms.world import begin


def main() -> None:
    """Train all cases."""
    pace = begin("plain")
    world = pace.world
    for case in world.cases:
        shared = world.first(case.method)
        model = model_of(world, case.method, world.first(case.method))
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
