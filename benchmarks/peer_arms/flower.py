"""Flower's simulation: a client app for each client, FedAvg in a server app, and Ray between them.

All cases are trained in one simulation. Ray has one core and so one worker, as the other arms
have; `evaluate_fn`, which Flower calls before the first round and after each, keeps the pace.
"""

import os
from functools import cache
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peer_arms.model import model_of, train_client
from peer_arms.world import Case, World, begin

client_app = ClientApp()


@cache
def _world(folder: str) -> World:
    """Read the plan, once per worker."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # or tiny gradients take several times as long
    return World.read(Path(folder))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client from the parameters that the message brings."""
    config, client = message.content["config"], int(context.node_config["partition-id"])
    world, case = _world(config["folder"]), Case(config["method"], config["batch"])
    model = model_of(world, case.method, message.content["arrays"].to_torch_state_dict())
    train_client(world, model, world.batches(case, config["server-round"], client))
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"weight": 1}),
    }
    return Message(content=RecordDict(content), reply_to=message)


def main() -> None:
    """Train all cases."""
    pace = begin("flower")
    world = pace.world
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        for case in world.cases:
            everybody = {f"min_{some}_nodes": world.clients for some in ("train", "available")}
            strategy = FedAvg(fraction_evaluate=0.0, weighted_by_key="weight", **everybody)

            def keep_pace(number: int, arrays: ArrayRecord, case: Case = case) -> None:
                if number:
                    pace.stop(case, number, arrays.to_torch_state_dict())
                if number < world.rounds:
                    pace.start()

            strategy.start(
                grid,
                ArrayRecord(world.first(case.method)),
                num_rounds=world.rounds,
                train_config=ConfigRecord(
                    {"folder": str(world.folder), "method": case.method, "batch": case.batch}
                ),
                evaluate_fn=keep_pace,
            )

    backend = {
        "init_args": {"num_cpus": 1, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client_app, world.clients, backend_config=backend)


if __name__ == "__main__":
    from peer_arms import flower

    flower.main()  # of the module that Ray's worker imports by its name
