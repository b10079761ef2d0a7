"""Hooks of a method that do something in the midst of a round."""

from collections.abc import Callable
from typing import Any

from fedloom.federated.task import Task
from fedloom.hooks.run_hooks import Hooks


class BeforeAggregation:
    """The hooks of a method, which call `act(task)` before they aggregate."""

    def __init__(self, act: Callable[[Task], object], hooks: Hooks):
        self._act = act
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)

    def aggregate(self, task: Task, **given: Any) -> Any:
        """Aggregate as the method does, once `act` has returned."""
        self._act(task)
        return self._hooks.aggregate(task=task, **given)
