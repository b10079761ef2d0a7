"""The stacked client engine: what a plugin imports is named here."""

from fedloom.backbones.vit import insert, linear, replace
from fedloom.engine.aggregate import mean, uploads
from fedloom.engine.contexts import check_lengths, first_context
from fedloom.engine.local import Trained, learning_rate, local_sgd
from fedloom.engine.passes import class_means, slices
from fedloom.engine.selection import (
    asked_for,
    first_params,
    for_client_or_image,
    matches,
    mean_of_picked,
    predict_picked,
    take,
    train_picked,
)
from fedloom.engine.shallow import shallow_loss, shallow_params, shallow_scores
from fedloom.engine.task import Cohort, Task, Update
from fedloom.engine.transport import transport_plan
from fedloom.engine.tree import Tree, stack, tensor_map, unstack
from fedloom.entries import entry_of
from fedloom.hookspecs import NOBODY, hookimpl

__all__ = [
    "NOBODY",
    "Cohort",
    "Task",
    "Trained",
    "Tree",
    "Update",
    "asked_for",
    "check_lengths",
    "class_means",
    "entry_of",
    "first_context",
    "first_params",
    "for_client_or_image",
    "hookimpl",
    "insert",
    "learning_rate",
    "linear",
    "local_sgd",
    "matches",
    "mean",
    "mean_of_picked",
    "predict_picked",
    "replace",
    "shallow_loss",
    "shallow_params",
    "shallow_scores",
    "slices",
    "stack",
    "take",
    "tensor_map",
    "train_picked",
    "transport_plan",
    "unstack",
    "uploads",
]
