"""A run's task, from its spec and the files that its rule names."""

import json
from pathlib import Path
from types import SimpleNamespace

import torch

from fedloom import plugins
from fedloom.backbones import vit
from fedloom.data import federation
from fedloom.data.store import ImageStore
from fedloom.engine import defaults, state
from fedloom.engine.task import Task
from fedloom.errors import FedLoomError


def prepare_torch(threads: int) -> torch.device:
    """Fix threads and arithmetic; returns the device to work on."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def num_classes(about: Path) -> int:
    """Number of classes of a dataset, from its description."""
    return len(json.loads(about.read_text())["classes"])


def task(
    spec: dict,
    store: Path,
    about: Path,
    partition: Path,
    features: Path | None,
    prototypes: Path | None,
    device: torch.device,
) -> tuple[Task, object, bool]:
    """The task of a run, its method's hooks, and whether its clients train as one batch.

    Raises:
        FedLoomError: a cohort larger than there are clients. The config cannot tell for a
            partition by domains, and the partition's rule must not: studies share its file.
    """
    method = plugins.find(spec["method"]["plugin"])
    data = federation.load(
        ImageStore(store),
        partition,
        num_classes(about),
        device,
        None if features is None else state.tensor(features, "final"),
    )
    if spec["clients_per_round"] > len(data.participating):
        raise FedLoomError(
            f"study.clients_per_round: {spec['clients_per_round']} is more than the "
            f"{len(data.participating)} participating clients of {partition}"
        )
    prepared = Task(
        seed=spec["seed"],
        options=SimpleNamespace(**spec["method"]["options"]),
        training=SimpleNamespace(**spec["method"]["training"], rounds=spec.get("rounds")),
        backbone=vit.load(spec["backbone"], device),
        data=data,
        clients_per_round=spec["clients_per_round"],
        prototypes=None if prototypes is None else state.load(prototypes, device)[0]["prototypes"],
    )
    return prepared, plugins.hooks(method, defaults), method.about["stacked"]
