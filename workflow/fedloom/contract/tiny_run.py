"""A run of a method on the tiny task, and comparisons of the states that it reaches."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.backbones.backbone import Backbone
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import Tree, leaves, tensor_map
from fedloom.contract import tiny
from fedloom.federated.round import collect_updates, initial_state, train_round
from fedloom.federated.state import State
from fedloom.federated.task import Task, Update
from fedloom.hooks import loader
from fedloom.hooks.manifest import MethodManifest
from fedloom.hooks.plugin_code import describe_call
from fedloom.hooks.run_hooks import Hooks

# tolerance after two rounds in float32, without and with wrappers that preserve only the sum
CLOSE = 1e-4
CLOSE_IN_SUM = 1e-3


def differences_of_trees(a: Tree, b: Tree) -> dict[str, float]:
    """Return the largest absolute difference of each leaf, by path.

    It is infinite where the trees do not match.
    """
    left = dict(leaves(a))
    right = dict(leaves(b))
    return {path: _difference(left.get(path), right.get(path)) for path in left | right}


def _difference(a: object, b: object) -> float:
    """Return the largest absolute difference of two leaves; infinity if they do not match."""
    # None stands for a client's loss that never reached the server
    if a is None and b is None:
        return 0.0
    if a is None or b is None:
        return math.inf

    x, y = (torch.as_tensor(value, dtype=torch.float64) for value in (a, b))
    if x.shape != y.shape:
        return math.inf
    if not x.numel():
        return 0.0
    return float((x - y).abs().max())


def require_equal(run: "TinyRun", a: Tree, b: Tree, what: str, tolerance: float = 0.0) -> None:
    """Require two trees of a run to be equal up to `tolerance`.

    If they are not, the error says `what`.
    """
    require_close(run, differences_of_trees(a, b), what, tolerance)


def require_close(run: "TinyRun", moved: dict[str, float], what: str, tolerance: float) -> None:
    """Require the differences of a run's leaves (`moved`, by path) to lie within the tolerance."""
    for path, difference in moved.items():
        if not difference <= tolerance:
            raise FedLoomError(f"{run.says(what)}: '{path}' differs by {difference:.3g}")


def upload(
    task: Task, hooks: Hooks, round_number: int, current: State, ids: list[int]
) -> tuple[Task, list[Update]]:
    """Return round `round_number`'s task, and what the clients `ids` send in it.

    If the method does not stack clients, only the first client trains.
    """
    ids = ids if task.declared.stacked else ids[:1]
    task = replace(task.at(round_number), selected=tuple(ids))
    return task, collect_updates(task, hooks, current, dict.fromkeys(ids, 1.0))[0]


class TinyRun:
    """A run of a method on the tiny task; its files are in `folder`."""

    def __init__(
        self,
        method: MethodManifest,
        folder: Path,
        *wrappers: MethodManifest,
        partition: dict = tiny.DIFFERENT,
        epochs: int = 1,
        backbone: Backbone | None = None,
        seed: int = 0,
    ):
        """Set up the run.

        Args:
            partition: the partition's scheme and its keys.
            epochs: number of local epochs.
            backbone: default: the tiny backbone that all checks share.
            seed: the seed of the partition.
        """
        self.method = method
        self.folder = folder
        self.wrappers = wrappers

        # the task, with the number of local epochs that the check needs
        backbone = backbone or tiny.tiny_backbone(method.family)
        task = tiny.tiny_task(method, folder, wrappers, partition, seed, backbone)
        self.task = replace(task, training=replace(task.training, epochs=epochs))
        self.hooks = loader.load_hooks(method, wrappers=wrappers)

        # masks that cancel only in the sum cause larger rounding errors
        self.tolerance = CLOSE
        if any(w.preserves for w in wrappers):
            self.tolerance = CLOSE_IN_SUM

    @cached_property
    def start(self) -> State:
        """Return the state before round 1."""
        return initial_state(self.task, self.hooks)

    @cached_property
    def first(self) -> State:
        """Return the state after round 1."""
        return self.after(1)

    @cached_property
    def uploads(self) -> tuple[Task, list[Update]]:
        """Return the task of round 1, and the updates that the first three clients send in it."""
        return upload(self.task, self.hooks, 1, self.start, self.task.data.participating[:3])

    def says(self, what: str) -> str:
        """Return an error's line about the run, such as "fedopt_pt with top_k: <what>"."""
        return describe_call([self.method.name, *(wrapper.name for wrapper in self.wrappers)], what)

    def after(self, count: int, **changes: object) -> State:
        """Return the state after `count` rounds of the task, with `changes` to its fields."""
        task = replace(self.task, **changes)
        current = self.start
        for round_number in range(1, count + 1):
            current, _ = train_round(task.at(round_number), self.hooks, current)
        return current

    def aggregate(
        self, updates: list[Update], change: Callable[[Tensor], Tensor] = lambda value: value
    ) -> Tree:
        """Return the server's state after round 1 with these updates.

        `change` is applied to every tensor of the payloads that `aggregate` gets.
        """
        given: dict[str, Any] = {"task": self.uploads[0], "server": self.start.server}
        accepted = self.hooks.receive(**given, updates=updates)
        accepted = [replace(u, payload=tensor_map(change, u.payload)) for u in accepted]
        return self.hooks.aggregate(**given, updates=accepted)

    def require_same_aggregate(self, others: list[Update], what: str, tolerance: float) -> None:
        """Require that the server's next state is the same from `others` as from the run's updates.

        Args:
            what: what an error says if the states differ.
            tolerance: the largest difference that is allowed.
        """
        before = self.aggregate(self.uploads[1])
        after = self.aggregate(others)
        require_equal(self, before, after, what, tolerance)
