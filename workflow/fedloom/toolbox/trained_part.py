"""A model whose trained part is an option: all weights of the backbone, some, prompts, or the head.

Methods that were published for whole networks (FedRep, Per-FedAvg, ...) read two options here:

    train: a regular expression, for the backbone's weights whose names it is found in ("": all);
        "prompts", for shallow prompts before frozen weights; "head", for a linear head alone.
    prompts: number of prompts, with `train: prompts`.

The parameters are `head` [K, C, d] and the body: `weights` {name: [K, ...]},
`shared_prompts` [K, P, d], or nothing; on a ResNet also batch norm's running `statistics`
{name: [K, c]}, which `train_model` averages over the images that it trained on.
"""

from typing import Any

from torch import Tensor

from fedloom.backbones.vit import insert, linear
from fedloom.common.errors import FedLoomError
from fedloom.common.initial_values import init_uniform
from fedloom.common.trees import Tree
from fedloom.data.federation import Batch
from fedloom.federated.local_training import Trained, train_locally
from fedloom.federated.task import Cohort, Task
from fedloom.toolbox.training import cross_entropy


def init_body(task: Task[Any]) -> Tree:
    """Return the part of the model below the head that `options.train` names, no client axis."""
    pattern = task.options.train
    backbone = task.backbone
    if pattern == "head":
        return {}

    if pattern == "prompts":
        if not hasattr(backbone, "init_prompts"):
            raise FedLoomError(f"{task.method}: option train: this backbone takes no prompts")
        stream = task.at(0).generator("shared prompts")
        return {"shared_prompts": backbone.init_prompts(task.options.prompts, stream)}

    weights = backbone.init_weights(pattern)
    if not weights:
        raise FedLoomError(f"{task.method}: option train: no weight has '{pattern}' in its name")

    # the weights, and on a ResNet the running statistics of batch norm
    body: Tree = {"weights": weights}
    if hasattr(backbone, "init_statistics"):
        body["statistics"] = backbone.init_statistics()
    return body


def init_model(task: Task[Any]) -> Tree:
    """Return the body and a linear head [C, d] of zeros, without a client axis."""
    return {"head": task.backbone.init_head(task.num_classes), **init_body(task)}


def random_head(task: Task[Any], *ids: int, purpose: str = "random head") -> Tensor:
    """Draw a linear head [C, d] as torch.nn.Linear does, for `purpose` and `ids`, in any round."""
    width = task.backbone.width
    return init_uniform(
        width**-0.5,
        task.num_classes,
        width,
        generator=task.at(0).generator(purpose, *ids),
        device=task.backbone.device,
    )


def model_features(task: Task[Any], params: Tree, images: Tensor) -> Tensor:
    """Compute the features [K, B, d] of uint8 images [K, B, H, W, channels]."""
    model = task.backbone
    if "shared_prompts" in params:
        tokens = insert(model.embed(images), params["shared_prompts"])
        return model.pool(model.blocks(tokens, read=1))
    weights = params.get("weights", {}) | params.get("statistics", {})
    return model.features(images, weights=weights or None)


def model_logits(task: Task[Any], params: Tree, batch: Batch) -> Tensor:
    """Compute logits [K, B, C]; batch norm uses running statistics."""
    return linear(model_features(task, params, batch.images), params["head"])


def model_loss(
    task: Task[Any], params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> Tensor | tuple[Tensor, Tree]:
    """Compute the cross-entropy [K, B]; with batch norm, the moments of the images beside it."""
    if "statistics" not in params:
        return cross_entropy(model_logits(task, params, batch), batch.labels)
    logits, moments = task.backbone.forward_batch(
        batch.images, params["head"], params["weights"], batch.mask
    )
    return cross_entropy(logits, batch.labels), moments


def train_model(task: Task[Any], received: Tree, clients: Cohort, params: Tree) -> Trained:
    """Train body and head of every client; on a ResNet, compute new running statistics as well."""
    if "statistics" not in params:
        return train_locally(task, model_loss, received, clients, params=params)

    # statistics are not trained: they are averages of the moments that counters add up
    names = tuple(name for name in params if name != "statistics")
    counters = task.backbone.init_counters(len(clients))
    trained = train_locally(
        task, model_loss, received, clients, params=params, train=names, counters=counters
    )
    trained.params["statistics"] = task.backbone.statistics(trained.counters)
    return trained
