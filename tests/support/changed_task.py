"""Tasks with other values: a task is frozen, and these return a changed copy."""

from dataclasses import replace

from fedloom.federated.task import Task


def with_training(task: Task, **changes: object) -> Task:
    """Return the task with other training options."""
    return replace(task, training=replace(task.training, **changes))  # type: ignore[arg-type]


def with_facts(task: Task, **changes: object) -> Task:
    """Return the task as if its method.toml, or the study, said otherwise of the method."""
    return replace(task, declared=replace(task.declared, **changes))  # type: ignore[arg-type]


def with_limits(task: Task, **changes: int) -> Task:
    """Return the task with other limits of what is trained or evaluated as one batch."""
    return replace(task, limits=replace(task.limits, **changes))
