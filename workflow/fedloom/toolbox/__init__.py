"""The library of a method: a plugin imports everything that it needs from FedLoom from here.

`ViTTask` and `CLIPTask` are the class `Task` with the class of the backbone. Plugins use them as
annotations.
"""

from typing import TYPE_CHECKING

from fedloom.backbones.vit import insert as insert
from fedloom.backbones.vit import linear as linear
from fedloom.backbones.vit import replace as replace
from fedloom.common.errors import FedLoomError as FedLoomError
from fedloom.common.ids import SERVER_MODEL as SERVER_MODEL
from fedloom.common.ids import entry_of as entry_of
from fedloom.common.initial_values import init_linear as init_linear
from fedloom.common.initial_values import init_uniform as init_uniform
from fedloom.common.renamed import renamed
from fedloom.common.trees import Tree as Tree
from fedloom.common.trees import leaves as leaves
from fedloom.common.trees import stack as stack
from fedloom.common.trees import tensor_map as tensor_map
from fedloom.common.trees import unstack as unstack
from fedloom.data.batch import Batch as Batch
from fedloom.data.federation import Federation as Federation
from fedloom.data.federation import class_priors as class_priors
from fedloom.federated.groups import iterate_examples as iterate_examples
from fedloom.federated.local_training import Trained as Trained
from fedloom.federated.local_training import clip_factors as clip_factors
from fedloom.federated.local_training import learning_rate as learning_rate
from fedloom.federated.local_training import train_locally as train_locally
from fedloom.federated.state import PersonalStates as PersonalStates
from fedloom.federated.task import Answers as Answers
from fedloom.federated.task import CLIPTask as CLIPTask
from fedloom.federated.task import Cohort as Cohort
from fedloom.federated.task import History as History
from fedloom.federated.task import Task as Task
from fedloom.federated.task import Update as Update
from fedloom.federated.task import ViTTask as ViTTask
from fedloom.hooks.defaults import mean as mean
from fedloom.hooks.hookspecs import hookimpl as hookimpl
from fedloom.toolbox.attacks import draw_attackers as draw_attackers
from fedloom.toolbox.attacks import relabelled as relabelled
from fedloom.toolbox.changes import finite_updates as finite_updates
from fedloom.toolbox.changes import flatten as flatten
from fedloom.toolbox.changes import merge as merge
from fedloom.toolbox.changes import require_params_alone as require_params_alone
from fedloom.toolbox.changes import split_by_received as split_by_received
from fedloom.toolbox.changes import unflatten as unflatten
from fedloom.toolbox.contexts import check_lengths as check_lengths
from fedloom.toolbox.contexts import init_context as init_context
from fedloom.toolbox.cross_attention import apply_linear as apply_linear
from fedloom.toolbox.cross_attention import init_cross_attention as init_cross_attention
from fedloom.toolbox.cross_attention import read_tokens as read_tokens
from fedloom.toolbox.image_contexts import contextual_logits as contextual_logits
from fedloom.toolbox.image_contexts import split_images as split_images
from fedloom.toolbox.inserts import adapter as adapter
from fedloom.toolbox.inserts import at_block as at_block
from fedloom.toolbox.inserts import deep_prompts as deep_prompts
from fedloom.toolbox.inserts import init_adapters as init_adapters
from fedloom.toolbox.inserts import lora as lora
from fedloom.toolbox.inserts import parallel_adapter as parallel_adapter
from fedloom.toolbox.privacy import gaussian_epsilon as gaussian_epsilon
from fedloom.toolbox.privacy import secret_uniform as secret_uniform
from fedloom.toolbox.prompt_history import extend_history as extend_history
from fedloom.toolbox.prompt_history import history_rows as history_rows
from fedloom.toolbox.prompt_history import start_history as start_history
from fedloom.toolbox.prompt_pool import cosine_similarity as cosine_similarity
from fedloom.toolbox.prompt_pool import gather_prompts as gather_prompts
from fedloom.toolbox.prompt_pool import init_params as init_params
from fedloom.toolbox.prompt_pool import mean_of_picked as mean_of_picked
from fedloom.toolbox.prompt_pool import predict_picked as predict_picked
from fedloom.toolbox.prompt_pool import prompts_for_prediction as prompts_for_prediction
from fedloom.toolbox.prompt_pool import top_prompts as top_prompts
from fedloom.toolbox.prompt_pool import train_picked as train_picked
from fedloom.toolbox.shallow import shallow_logits as shallow_logits
from fedloom.toolbox.shallow import shallow_loss as shallow_loss
from fedloom.toolbox.shallow import shallow_params as shallow_params
from fedloom.toolbox.trained_part import init_body as init_body
from fedloom.toolbox.trained_part import init_model as init_model
from fedloom.toolbox.trained_part import init_trained_weights as init_trained_weights
from fedloom.toolbox.trained_part import model_features as model_features
from fedloom.toolbox.trained_part import model_logits as model_logits
from fedloom.toolbox.trained_part import model_loss as model_loss
from fedloom.toolbox.trained_part import random_head as random_head
from fedloom.toolbox.trained_part import train_model as train_model
from fedloom.toolbox.training import cross_entropy as cross_entropy
from fedloom.toolbox.training import cross_entropy_among as cross_entropy_among
from fedloom.toolbox.training import gradients as gradients
from fedloom.toolbox.training import guessing_losses as guessing_losses
from fedloom.toolbox.training import make_updates as make_updates
from fedloom.toolbox.training import squared_distance as squared_distance

# old names (before 2026-11-27) of functions -> their new names
RENAMED = {"split_known": "split_by_received", "init_reader": "init_cross_attention"}

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, RENAMED)
