"""The library of a method: everything that a plugin imports from FedLoom is named here.

`ViTTask` and `CLIPTask` are `Task` with the class of the backbone, for the annotations of a plugin.
"""

from fedloom.backbones.vit import insert, linear, replace
from fedloom.common.errors import FedLoomError
from fedloom.common.ids import SERVER_MODEL, entry_of
from fedloom.common.tensors import Tree, leaves, stack, tensor_map, unstack
from fedloom.data.federation import Batch
from fedloom.federated.iterate import iterate_examples
from fedloom.federated.local_training import Trained, train_locally
from fedloom.federated.optimizers import learning_rate
from fedloom.federated.state import PersonalStates
from fedloom.federated.task import Cohort, History, Task, Update
from fedloom.hooks.defaults import mean
from fedloom.hooks.hookspecs import hookimpl
from fedloom.toolbox.aggregate import make_updates
from fedloom.toolbox.changes import flatten, merge, require_params_alone, split_known, unflatten
from fedloom.toolbox.contexts import check_lengths, init_context
from fedloom.toolbox.inserts import (
    adapter,
    at_block,
    deep_prompts,
    init_adapters,
    lora,
    parallel_adapter,
    prefix,
)
from fedloom.toolbox.losses import cross_entropy, squared_distance
from fedloom.toolbox.model import (
    gradients,
    init_body,
    init_model,
    model_features,
    model_logits,
    model_loss,
    random_head,
    train_model,
)
from fedloom.toolbox.privacy import gaussian_epsilon, secret_uniform
from fedloom.toolbox.prompt_history import extend_history, history_rows, start_history
from fedloom.toolbox.prompt_pool import (
    cosine_similarity,
    gather_prompts,
    init_params,
    mean_of_picked,
    predict_picked,
    prompts_for_prediction,
    top_prompts,
    train_picked,
)
from fedloom.toolbox.prototypes import class_means
from fedloom.toolbox.server_step import init_moments, server_step
from fedloom.toolbox.shallow import shallow_logits, shallow_loss, shallow_params
from fedloom.toolbox.tasks import CLIPTask, ViTTask
from fedloom.toolbox.transport import transport_plan

__all__ = [
    "SERVER_MODEL",
    "Batch",
    "CLIPTask",
    "Cohort",
    "FedLoomError",
    "History",
    "PersonalStates",
    "Task",
    "Trained",
    "Tree",
    "Update",
    "ViTTask",
    "adapter",
    "at_block",
    "check_lengths",
    "class_means",
    "cosine_similarity",
    "cross_entropy",
    "deep_prompts",
    "entry_of",
    "extend_history",
    "flatten",
    "gather_prompts",
    "gaussian_epsilon",
    "gradients",
    "history_rows",
    "hookimpl",
    "init_adapters",
    "init_body",
    "init_context",
    "init_model",
    "init_moments",
    "init_params",
    "insert",
    "iterate_examples",
    "learning_rate",
    "leaves",
    "linear",
    "lora",
    "make_updates",
    "mean",
    "mean_of_picked",
    "merge",
    "model_features",
    "model_logits",
    "model_loss",
    "parallel_adapter",
    "predict_picked",
    "prefix",
    "prompts_for_prediction",
    "random_head",
    "replace",
    "require_params_alone",
    "secret_uniform",
    "server_step",
    "shallow_logits",
    "shallow_loss",
    "shallow_params",
    "split_known",
    "squared_distance",
    "stack",
    "start_history",
    "tensor_map",
    "top_prompts",
    "train_locally",
    "train_model",
    "train_picked",
    "transport_plan",
    "unflatten",
    "unstack",
]
