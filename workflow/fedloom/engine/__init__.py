"""The stacked client engine: what a plugin imports is named here."""

from fedloom.backbones.vit import insert, linear, replace
from fedloom.engine.aggregate import mean, uploads
from fedloom.engine.local import Trained, local_sgd
from fedloom.engine.passes import class_means
from fedloom.engine.task import Cohort, Task, Update
from fedloom.engine.tree import Tree, stack, tensor_map, unstack
from fedloom.hookspecs import hookimpl

__all__ = [
    "Cohort",
    "Task",
    "Trained",
    "Tree",
    "Update",
    "class_means",
    "hookimpl",
    "insert",
    "linear",
    "local_sgd",
    "mean",
    "replace",
    "stack",
    "tensor_map",
    "unstack",
    "uploads",
]
