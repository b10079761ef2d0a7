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

from fedloom.backbones.backbone import load_backbone
from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import OTHER
from fedloom.common.receipts import check_receipt, read_receipt
from fedloom.data import federation
from fedloom.data.store import ImageStore
from fedloom.federated.task import Task, WarmStart
from fedloom.hooks import loader, manifest
from fedloom.hooks.loader import Hooks
from fedloom.hooks.manifest import Plugin
from fedloom.planning.job_specs import RunSpec


def build_task(
    spec: RunSpec, files: Mapping[str, Path], device: torch.device
) -> tuple[Task, Hooks]:
    """Return the task of a run and its hooks; `files` are those of planning.paths.run_inputs."""
    run, method = spec.run, manifest.find(spec.method.plugin, kind="method")
    wrappers = [manifest.find(wrapper.plugin, kind="wrapper") for wrapper in spec.method.wrappers]
    facts = _checked_receipts(files)
    if method.family == "clip":
        check_names(facts, run.dataset)
    warm_start = None
    if "prototypes" in files:
        warm_start = WarmStart(**tensor_files.load(files["prototypes"], device)[0])
    store, classes = ImageStore(files["store"], facts), facts["classes"]
    caches = _caches(files, device)
    task = Task(
        seed=run.seed,
        fixed=spec.fixed,
        training=SimpleNamespace(**spec.method.training, rounds=spec.schedule_rounds),
        backbone=load_backbone(spec.backbone.family, spec.backbone.settings, device),
        data=federation.load_partition(store, files["partition"], classes, device, **caches),
        clients_per_round=spec.clients_per_round,
        wrappers={w.plugin: SimpleNamespace(**w.options) for w in spec.method.wrappers},
        warm_start=warm_start,
        rejects_non_finite=any(wrapper.rejects_non_finite for wrapper in wrappers),
        **fields_of(method, spec.method.options, spec.stacked),
    )
    clients = len(task.data.participating)
    if spec.clients_per_round > clients:  # the config cannot tell for a partition by domains
        raise FedLoomError(
            f"study.clients_per_round: {spec.clients_per_round} is more than the {clients} "
            "participating clients of the partition"
        )
    return task, loader.load_hooks(method, wrappers=wrappers)


def fields_of(method: Plugin, options: dict[str, Any], stacked: bool = True) -> dict[str, Any]:
    """Return the fields of a Task that follow from method.toml and the method's options."""
    return {
        "options": SimpleNamespace(**options),
        "stacked": method.stacked and stacked,
        "features_only": method.features_only,
        "forward_inputs": method.forward_inputs,
        "passes": method.passes(options),
        "whole_cohorts": method.needs_whole_cohorts(options),
        "trains_weights": method.trains_weights(options),
        "prompts": method.prompts_of_a_block(options),
        "method": method.name,
        "aggregation": method.aggregation_with(options),
    }


def with_datasets(
    task: Task, files: Mapping[str, Mapping[str, Path]], device: torch.device
) -> Task:
    """Return a task with the test images of other datasets in `data.unseen`, by their labels.

    Their `files` are those of fedloom.planning.paths.other_inputs.
    """
    unseen = dict(task.data.unseen)
    for dataset, of_dataset in files.items():
        facts = _checked_receipts(of_dataset)
        check_names(facts, dataset)
        store = ImageStore(of_dataset["store"], facts)
        other = {"store": store} | _caches(of_dataset, device)
        rows, classes = np.flatnonzero(store.test), facts["classes"]
        unseen[OTHER + dataset] = federation.with_test_images(
            task.data, rows, store.labels, classes, **other
        )
    return replace(task, data=replace(task.data, unseen=unseen))


def _checked_receipts(files: Mapping[str, Path]) -> dict[str, Any]:
    """Check all files but the image store, whose reader verifies it, and return its receipt."""
    for name in files.keys() - {"store"}:
        check_receipt(files[name])
    return read_receipt(files["store"])


def _caches(files: Mapping[str, Path], device: torch.device) -> dict[str, Any]:
    """Return `tokens` and `patches` of a Federation, of the caches among the files."""
    caches = {"features": ("tokens", cached_tokens), "patches": ("patches", cached_patches)}
    return {key: read(files[name], device) for name, (key, read) in caches.items() if name in files}


def cached_tokens(features: Path, device: torch.device) -> Callable[[int | None], Tensor]:
    """Return `Federation.tokens`, which reads class tokens [N, d] of a cache on first use."""

    @lru_cache
    def tokens(block: int | None) -> Tensor:
        name, column = ("final", None) if block is None else ("inputs", block - 1)
        return tensor_files.tensor(features, name, column).to(device)

    return tokens


def cached_patches(file: Path, device: torch.device) -> Callable[[], Tensor]:
    """Return `Federation.patches`: tokens [N, T, d], on a GPU if they fit, else on disk."""

    @lru_cache
    def patches() -> Tensor:
        stored = tensor_files.tensor(file, "patches")
        return stored.to(device) if federation.fits_on_gpu(stored.nbytes, device) else stored

    return patches


def check_names(facts: dict, dataset: str) -> None:
    """Check that classes have names, by the receipt of the image store."""
    if not facts.get("named", True):
        raise FedLoomError(
            f"datasets.{dataset}: its {len(facts['classes'])} classes have numbers and no names, "
            f"which a CLIP's prompts are made of; set datasets.{dataset}.class_names, or of "
            f"the source folder datasets.{dataset}.names"
        )
