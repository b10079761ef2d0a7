"""Build a run's task and hooks from its spec and its data files."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.backbones import base
from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import OTHER
from fedloom.common.receipts import check_receipt, read_receipt
from fedloom.data import federation
from fedloom.data.store import ImageStore
from fedloom.federated.task import Task, WarmStart
from fedloom.hooks import loader, manifest
from fedloom.hooks.hook_caller import Hooks
from fedloom.study.jobs import RunSpec


def build_task(
    spec: RunSpec, files: Mapping[str, Path], device: torch.device
) -> tuple[Task, Hooks]:
    """Return the task of a run, whose `files` are fedloom.study.paths.run_inputs, and its hooks."""
    run, method = spec.run, manifest.find(spec.method.plugin, kind="method")
    wrappers = [manifest.find(wrapper.plugin, kind="wrapper") for wrapper in spec.method.wrappers]
    facts = read_receipt(files["store"])
    for name in files.keys() - {"store"}:  # whose reader verifies what it reads
        check_receipt(files[name])
    if method.family == "clip":
        check_names(facts, run.dataset)
    warm_start = None
    if "prototypes" in files:
        warm_start = WarmStart(**tensor_files.load(files["prototypes"], device)[0])
    task = Task(
        seed=run.seed,
        fixed=spec.fixed,
        options=SimpleNamespace(**spec.method.options),
        training=SimpleNamespace(**spec.method.training, rounds=spec.schedule_rounds),
        backbone=base.load(spec.backbone.family, spec.backbone.settings, device),
        data=federation.load(
            ImageStore(files["store"], facts),
            files["partition"],
            facts["classes"],
            device,
            **_caches(files, device),
        ),
        clients_per_round=spec.clients_per_round,
        stacked=method.stacked and spec.stacked,
        features_only=method.features_only,
        forward_inputs=method.forward_inputs,
        passes=method.passes(spec.method.options),
        whole_cohorts=method.needs_whole_cohorts(spec.method.options),
        trains_weights=method.trains_weights(spec.method.options),
        prompts=method.prompts_of_a_block(spec.method.options),
        method=method.name,
        wrappers={w.plugin: SimpleNamespace(**w.options) for w in spec.method.wrappers},
        aggregation=method.aggregation_with(spec.method.options),
        warm_start=warm_start,
    )
    check_cohort(task)
    return task, loader.load_hooks(method, wrappers=wrappers)


def with_datasets(
    task: Task, files: Mapping[str, Mapping[str, Path]], device: torch.device
) -> Task:
    """Return a task with the test images of other datasets in `data.unseen`, by their labels.

    Args:
        files: of each dataset, see fedloom.study.paths.other_inputs.
    """
    unseen = dict(task.data.unseen)
    for dataset, of_dataset in files.items():
        facts = read_receipt(of_dataset["store"])
        check_names(facts, dataset)
        for name in of_dataset.keys() - {"store"}:
            check_receipt(of_dataset[name])
        store = ImageStore(of_dataset["store"], facts)
        other = {"store": store} | _caches(of_dataset, device)
        rows = np.flatnonzero(store.test)
        found = federation.among(task.data, rows, store.labels, facts["classes"], **other)
        unseen[OTHER + dataset] = found
    return replace(task, data=replace(task.data, unseen=unseen))


def _caches(files: Mapping[str, Path], device: torch.device) -> dict[str, Any]:
    """Return `tokens` and `patches` of a Federation, of the caches among the files."""
    caches = {"features": ("tokens", cached_tokens), "patches": ("patches", cached_patches)}
    return {key: read(files[name], device) for name, (key, read) in caches.items() if name in files}


def cached_tokens(features: Path, device: torch.device) -> Callable[[int | None], Tensor]:
    """Return `Federation.tokens`, which reads class tokens [N, d] of a cache on first use."""

    @lru_cache
    def tokens(block: int | None) -> Tensor:
        if block is None:
            return tensor_files.tensor(features, "final").to(device)
        return tensor_files.tensor(features, "inputs", block - 1).to(device)

    return tokens


def cached_patches(file: Path, device: torch.device) -> Callable[[], Tensor]:
    """Return a function that gives all images' patch tokens [N, T, d] of a cache.

    They stay in a memory-mapped file, of which a batch reads its rows, unless they fit a GPU.
    """

    @lru_cache
    def patches() -> Tensor:
        stored = tensor_files.tensor(file, "patches")
        return stored.to(device) if federation.fits(stored.nbytes, device) else stored

    return patches


def check_names(facts: dict, dataset: str) -> None:
    """Check that classes have names, by the receipt of the image store."""
    if not facts.get("named", True):
        raise FedLoomError(
            f"datasets.{dataset}: its {len(facts['classes'])} classes have numbers and no names, "
            f"which a CLIP's prompts are made of; set datasets.{dataset}.class_names"
        )


def check_cohort(task: Task) -> None:
    """Check that a cohort is at most all participating clients.

    The config cannot tell for a partition by domains, whose clients follow from the dataset.
    """
    clients = len(task.data.participating)
    if task.clients_per_round > clients:
        raise FedLoomError(
            f"study.clients_per_round: {task.clients_per_round} is more than the {clients} "
            "participating clients of the partition"
        )
