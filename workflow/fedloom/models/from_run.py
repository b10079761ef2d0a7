"""Read the model of a run from the run's files, without its study."""

from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import cattrs
import torch

from fedloom.common import tensor_files
from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import check_receipt, read_receipt
from fedloom.federated.build_task import build_task
from fedloom.federated.state import State
from fedloom.federated.task import Task
from fedloom.hooks.run_hooks import Hooks
from fedloom.models.images import Preparation
from fedloom.models.needed_plugins import check_plugins
from fedloom.models.run_folder import find_run, find_state
from fedloom.models.weights import (
    check_weights,
    with_files_below,
    with_precision,
    with_weights_among,
)
from fedloom.planning import paths
from fedloom.planning.job_specs import RunSpec

AGAIN = "install that version, or run its study again"
OLD = "was written by a version that did not keep what a model needs; run its study again"


@dataclass(frozen=True)
class FinishedRound:
    """A run after a round: all that its evaluation asks the method with.

    Attributes:
        spec: what the numbers of the run depend on.
        task: the run's task in that round.
        hooks: the hooks of the run.
        state: the state after the round.
        preparation: how the study's images were brought into their shape.
        weights: the sha256 of the backbone's weights; None if they are untrained.
    """

    spec: RunSpec
    task: Task[Any]
    hooks: Hooks
    state: State
    preparation: Preparation
    weights: str | None


def read_round(
    name: str | PathLike, round_number: int | None, device: torch.device, precision: str | None
) -> FinishedRound:
    """Read a run after a round.

    Args:
        name: the run's folder below results/runs, or its labels, which the study's name may
            precede.
        round_number: a round after which a job of the run ended; None: the last one.
        device: the device for all tensors.
        precision: the number format of the backbone; None: that of the study.

    Raises:
        FedLoomError: there is no such run or round, a file is missing or was changed, a plugin is
            missing or has other options, or the backbone's weights are others.
    """
    root, run = find_run(fspath(name))
    file = find_state(root, run, round_number)
    facts = check_receipt(file)
    spec = _spec_of_state(file, facts)
    check_plugins(file, spec, "trained with another FedLoom", AGAIN)

    # a study names local files relative to the folder in which it runs
    files_of_weights = [root / spec.backbone.settings["weights"]]
    used = with_weights_among(with_precision(spec.backbone, precision), files_of_weights)
    used = with_files_below(used, root)

    # the run's data, as its jobs read them
    inputs = paths.run_inputs(spec.run, spec.method.needs)
    files = {key: root / path for key, path in inputs.items()}
    preparation = _preparation(files["store"])
    task, hooks = build_task(replace(spec, backbone=used), files, device)
    check_weights(file, used, task.backbone, facts["weights"])

    # the state
    tree, content = tensor_files.load(file)
    state = State.from_tree(tree, device)
    return FinishedRound(
        spec, task.at(content["round"]), hooks, state, preparation, facts["weights"]
    )


def _spec_of_state(file: Path, facts: JsonDict) -> RunSpec:
    """Return the settings of a run from the receipt of a state.

    Raises:
        FedLoomError: the receipt holds none, or those of another version.
    """
    try:
        return cattrs.structure(facts["spec"], RunSpec)
    except (KeyError, ValueError, TypeError, cattrs.BaseValidationError):
        raise FedLoomError(f"{file}: {OLD}") from None


def _preparation(store: Path) -> Preparation:
    """Return how the images of a store were brought into their shape, from its receipt."""
    facts = read_receipt(store)
    if "preparation" not in facts:
        raise FedLoomError(f"{store}: {OLD}")
    height, width, channels = facts["shape"]
    return Preparation(height, width, channels, **facts["preparation"])
