"""A run's task, from its spec and the files that its rule names."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from fedloom import backbones, plugins
from fedloom.data import federation
from fedloom.data.store import ImageStore
from fedloom.engine import defaults, state
from fedloom.engine.task import Task
from fedloom.errors import FedLoomError
from fedloom.files import check_receipt


def prepare_torch(threads: int) -> torch.device:
    """Fix threads and arithmetic; returns the device to work on."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def task(
    spec: dict,
    store: Path,
    about: Path,
    partition: Path,
    features: Path | None,
    patches: Path | None,
    prototypes: Path | None,
    device: torch.device,
) -> tuple[Task, object]:
    """The task of a run, and its method's hooks.

    Raises:
        FedLoomError: an input that is not what its receipt says, too large a cohort, or a CLIP
            method on classes without names.
    """
    method = plugins.find(spec["method"]["plugin"], kind="method")
    wrapping = spec["method"]["wrappers"]
    wrappers = [plugins.find(entry["plugin"], kind="wrapper") for entry in wrapping]
    facts = check_receipt(store, about)
    if method.about["family"] == "clip":
        check_names(facts, spec["run"].split("/")[0])
    for path in (partition, features, patches, prototypes):
        if path is not None:
            check_receipt(path)
    prepared = Task(
        seed=spec["seed"],
        options=SimpleNamespace(**spec["method"]["options"]),
        training=SimpleNamespace(**spec["method"]["training"], rounds=spec.get("rounds")),
        backbone=backbones.load(spec["backbone"], device),
        data=federation.load(
            ImageStore(store),
            partition,
            facts["classes"],
            device,
            tokens=features and cached_tokens(features, device),
            patches=patches and cached_patches(patches, device),
        ),
        clients_per_round=spec["clients_per_round"],
        stacked=method.about["stacked"],
        features_only=method.features_only,
        method=method.name,
        wrappers={entry["plugin"]: SimpleNamespace(**entry["options"]) for entry in wrapping},
        prototypes=prototypes and SimpleNamespace(**state.load(prototypes, device)[0]),
    )
    check_cohort(prepared)
    return prepared, plugins.hooks(method, defaults, wrappers=wrappers)


def cached_tokens(features: Path, device: torch.device) -> Callable[[int | None], Tensor]:
    """See `Federation.tokens`; a place is read when it is asked for."""

    @lru_cache
    def tokens(place: int | None) -> Tensor:
        if place is None:
            return state.tensor(features, "final").to(device)
        return state.tensor(features, "inputs", place - 1).to(device)

    return tokens


def cached_patches(file: Path, device: torch.device) -> Callable[[], Tensor]:
    """See `Federation.patches`; read when asked for."""

    @lru_cache
    def patches() -> Tensor:
        return state.tensor(file, "patches").to(device)

    return patches


def check_names(about: dict, dataset: str) -> None:
    """A CLIP's prompts are made of the classes' names."""
    if not about.get("named", True):
        raise FedLoomError(
            f"datasets.{dataset}: its {len(about['classes'])} classes have numbers and no names, "
            f"which a CLIP's prompts are made of; set datasets.{dataset}.class_names"
        )


def check_cohort(task: Task) -> None:
    """A cohort is at most all participating clients.

    The config cannot tell for a partition by domains, whose clients follow from the dataset, and
    the partition's rule must not: studies with other cohorts share its file.
    """
    clients = len(task.data.participating)
    if task.clients_per_round > clients:
        raise FedLoomError(
            f"study.clients_per_round: {task.clients_per_round} is more than the {clients} "
            "participating clients of the partition"
        )
