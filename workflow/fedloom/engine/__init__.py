"""The stacked client engine: what a plugin imports is named here."""

from fedloom.backbones.vit import insert, linear, replace
from fedloom.engine.aggregate import mean, uploads
from fedloom.engine.local import Trained, learning_rate, local_sgd
from fedloom.engine.passes import class_means
from fedloom.engine.selection import (
    asked_for,
    for_client_or_image,
    mean_of_picked,
    pick,
    take,
)
from fedloom.engine.task import Cohort, Task, Update
from fedloom.engine.tree import Tree, stack, tensor_map, unstack
from fedloom.hookspecs import NOBODY, hookimpl

__all__ = [
    "NOBODY",
    "Cohort",
    "Task",
    "Trained",
    "Tree",
    "Update",
    "asked_for",
    "class_means",
    "for_client_or_image",
    "hookimpl",
    "insert",
    "learning_rate",
    "linear",
    "local_sgd",
    "mean",
    "mean_of_picked",
    "pick",
    "replace",
    "stack",
    "take",
    "tensor_map",
    "unstack",
    "uploads",
]
