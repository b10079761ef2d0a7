"""Ask wrappers that simulate attackers who attacks, with which images, and check the answers."""

from typing import Any

from fedloom.data.federation import Federation
from fedloom.federated.checks import check_ids
from fedloom.federated.checks.trees import call_of, wrong
from fedloom.federated.task import Task
from fedloom.hooks.hook_caller import Hooks


def attackers(task: Task, hooks: Hooks) -> list[int]:
    """Return the ids of the clients that attack."""
    ids = hooks.attackers(task=task)
    if ids != []:
        check_ids(task, "attackers", ids, task.data.participating, "participating clients")
    return ids


def training_data(task: Task, hooks: Hooks) -> Federation:
    """Return the data that clients train on."""
    return _federation(task, "training_data", hooks.training_data(task=task))


def triggered(task: Task, hooks: Hooks) -> Federation | None:
    """Return test images with a trigger; None if there is no backdoor."""
    data = hooks.triggered(task=task)
    return None if data is None else _federation(task, "triggered", data)


def _federation(task: Task, hook: str, data: Any) -> Federation:
    if not isinstance(data, Federation):
        raise wrong(call_of(task, hook), "must return a Federation, as task.data is", data)
    return data
