"""Build a run's task and hooks from its spec and its data files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from fedloom.backbones.backbone import load_backbone
from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import OTHER_DATASET_PREFIX
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import check_receipt, read_receipt
from fedloom.data import loading
from fedloom.data.store import ImageStore
from fedloom.federated.task import MethodFacts, Task, TrainingOptions, WarmStart
from fedloom.hooks import loader, manifest
from fedloom.hooks.manifest import MethodManifest
from fedloom.hooks.run_hooks import Hooks
from fedloom.machine import transfers
from fedloom.planning.job_specs import RunSpec


def build_task(
    spec: RunSpec, files: Mapping[str, Path], device: torch.device
) -> tuple[Task, Hooks]:
    """Return the task of a run, and its hooks.

    Args:
        files: the run's input files by name (`planning.paths.run_inputs`).

    Raises:
        FedLoomError: a file does not match its receipt, classes lack names that a CLIP needs, or
            the partition has fewer participating clients than `clients_per_round`.
    """
    run = spec.run
    method = manifest.find_method(spec.method.plugin, role="method")
    wrappers = [
        manifest.find_method(wrapper.plugin, role="wrapper") for wrapper in spec.method.wrappers
    ]

    # check the files before anything is read
    facts = _checked_receipts(files)
    if method.family == "clip":
        check_classes_have_names(facts, run.dataset)

    # the images of all clients, and the caches that were computed from them
    store = ImageStore(files["store"], facts)
    data = loading.load_partition(
        store, files["partition"], facts["classes"], device, **_caches(files, device)
    )
    warm_start = None
    if "prototypes" in files:
        tensors, _ = tensor_files.load(files["prototypes"], device)
        warm_start = WarmStart(**tensors)

    # the method, its training and its backbone, as the spec gives them
    task = Task(
        seed=run.seed,
        fixed_seeds=spec.fixed_seeds,
        options=SimpleNamespace(**spec.method.options),
        training=TrainingOptions(**spec.method.training, schedule_rounds=spec.schedule_rounds),
        backbone=load_backbone(spec.backbone.library, spec.backbone.settings, device),
        data=data,
        clients_per_round=spec.clients_per_round,
        declared=method_facts(method, spec.method.options, wrappers, stacked=spec.stacked),
        wrappers={w.plugin: SimpleNamespace(**w.options) for w in spec.method.wrappers},
        warm_start=warm_start,
    )

    # for a partition by domains, the number of clients follows from the data, not from the config
    clients = len(task.data.participating)
    if spec.clients_per_round > clients:
        raise FedLoomError(
            f"study.clients_per_round: must be at most {clients}, the participating clients of the "
            f"partition, got {spec.clients_per_round}"
        )
    return task, loader.load_hooks(method, wrappers=wrappers)


def method_facts(
    method: MethodManifest,
    options: JsonDict,
    wrappers: Sequence[MethodManifest] = (),
    stacked: bool = True,
) -> MethodFacts:
    """Return the facts of a method under these options and wrappers.

    If the study does not stack clients (`stacked` is False), no method stacks them.
    """
    return MethodFacts(
        name=method.name,
        stacked=method.stacked and stacked,
        features_only=method.features_only,
        forward_inputs=method.forward_inputs,
        passes=method.passes(options),
        whole_cohorts=method.needs_whole_cohorts(options),
        trains_weights=method.trains_weights(options),
        prompts=method.prompts_of_a_block(options),
        aggregation=method.aggregation_with(options),
        rejects_non_finite=any(wrapper.rejects_non_finite for wrapper in wrappers),
    )


def with_datasets(
    task: Task, files: Mapping[str, Mapping[str, Path]], device: torch.device
) -> Task:
    """Return the task with the test images of other datasets in `data.unseen`.

    Args:
        files: for each dataset's label, its files by name (`planning.paths.other_inputs`).

    Raises:
        FedLoomError: a file does not match its receipt, or the classes of a dataset lack names.
    """
    unseen = dict(task.data.unseen)
    for dataset, of_dataset in files.items():
        # check the files before anything is read
        facts = _checked_receipts(of_dataset)
        check_classes_have_names(facts, dataset)

        # the clients keep their own training images, and get the dataset's test images
        store = ImageStore(of_dataset["store"], facts)
        unseen[OTHER_DATASET_PREFIX + dataset] = loading.with_test_images(
            task.data,
            np.flatnonzero(store.test),
            store.labels,
            facts["classes"],
            store=store,
            **_caches(of_dataset, device),
        )
    return replace(task, data=replace(task.data, unseen=unseen))


def _checked_receipts(files: Mapping[str, Path]) -> JsonDict:
    """Check all files but the image store against their receipts; return the store's receipt.

    The reader of the image store checks the store itself.
    """
    for name in files.keys() - {"store"}:
        check_receipt(files[name])
    return read_receipt(files["store"])


def _caches(files: Mapping[str, Path], device: torch.device) -> loading.Caches:
    """Return the arguments `tokens` and `patches` of a Federation, from the caches in `files`."""
    caches: loading.Caches = {}
    if "features" in files:
        caches["tokens"] = cached_tokens(files["features"], device)
    if "patches" in files:
        caches["patches"] = cached_patches(files["patches"], device)
    return caches


def cached_tokens(features: Path, device: torch.device) -> Callable[[int | None], Tensor]:
    """Return the function `Federation.tokens`, which reads class tokens [N, d] from a cache.

    It reads the tokens of each block on first use.
    """

    @lru_cache
    def tokens(block: int | None) -> Tensor:
        if block is None:
            stored = tensor_files.tensor(features, "final")
        else:
            stored = tensor_files.tensor(features, "inputs", block - 1)
        return stored.to(device)

    return tokens


def cached_patches(file: Path, device: torch.device) -> Callable[[], Tensor]:
    """Return the function `Federation.patches`, which gives patch tokens [N, T, d] from a cache.

    The tokens are read on first use. They lie on a GPU if they fit there, else on disk.
    """

    @lru_cache
    def patches() -> Tensor:
        stored = tensor_files.tensor(file, "patches")
        if transfers.fits_on_gpu(stored.nbytes, device):
            return stored.to(device)
        return stored

    return patches


def check_classes_have_names(facts: dict, dataset: str) -> None:
    """Check that the classes of a dataset have names, by the receipt of its image store.

    Raises:
        FedLoomError: the classes have only numbers, and a CLIP's prompts need names.
    """
    if not facts.get("named", True):
        raise FedLoomError(
            f"datasets.{dataset}: its {len(facts['classes'])} classes have numbers and no names, "
            f"which a CLIP's prompts are made of; set datasets.{dataset}.class_names, or of "
            f"the source folder datasets.{dataset}.names"
        )
