"""A model whose trained part is an option: all weights, some weights, prompts, or only the head.

Methods that were published for whole networks (FedRep, Per-FedAvg, ...) have two options:

- `train`: a regular expression. The backbone's weights are trained whose names it matches; an empty
  one matches all. Two values are special: "prompts" trains shallow prompts before frozen weights,
  and "head" trains only a linear head.
- `prompts`: the number of prompts, with `train: prompts`.

The parameters of the model are `head` [K, C, d] and its body. The body is `weights` {name: [K,
...]}, or `shared_prompts` [K, P, d], or nothing. On a ResNet it also has the running `statistics`
{name: [K, c]} of batch norm. `train_model` averages these over the images that it trained on.
"""

from typing import Any

from torch import Tensor

from fedloom.backbones.vit import insert, linear
from fedloom.common.errors import FedLoomError
from fedloom.common.initial_values import init_uniform
from fedloom.common.trees import Tree
from fedloom.data.batch import Batch
from fedloom.federated.local_training import Loss, Trained, train_locally
from fedloom.federated.task import Cohort, Task
from fedloom.toolbox.training import cross_entropy


def init_trained_weights(task: Task[Any]) -> dict[str, Tensor]:
    """Return the backbone's weights {name: [...]} in whose names `options.train` finds a match.

    Raises:
        FedLoomError: `options.train` matches no weight.
    """
    pattern = task.options.train
    weights = task.backbone.init_weights(pattern)
    if not weights:
        raise FedLoomError(
            f"{task.method}: option train must match the name of a weight, got '{pattern}'; choose "
            "another regular expression"
        )
    return weights


def init_body(task: Task[Any]) -> Tree:
    """Return the body of the model, as `options.train` names it, without a client axis.

    Raises:
        FedLoomError: the backbone takes no prompts, or `options.train` matches no weight.
    """
    part = task.options.train
    backbone = task.backbone
    if part == "head":
        return {}

    if part == "prompts":
        if not hasattr(backbone, "init_prompts"):
            raise FedLoomError(
                f"{task.method}: option train must not be prompts, because this backbone takes no "
                "prompts; choose another part"
            )
        stream = task.at(0).generator("shared prompts")
        return {"shared_prompts": backbone.init_prompts(task.options.prompts, stream)}

    # on a ResNet, add the running statistics of batch norm
    body: Tree = {"weights": init_trained_weights(task)}
    if hasattr(backbone, "init_statistics"):
        body["statistics"] = backbone.init_statistics()
    return body


def init_model(task: Task[Any]) -> Tree:
    """Return the body and a linear head [C, d] of zeros, without a client axis."""
    return {"head": task.backbone.init_head(task.num_classes), **init_body(task)}


def random_head(task: Task[Any], *ids: int, purpose: str = "random head") -> Tensor:
    """Draw a linear head [C, d] as torch.nn.Linear does.

    The draw depends on `purpose` and `ids`, and is the same in every round.
    """
    width = task.backbone.width
    return init_uniform(
        width**-0.5,
        task.num_classes,
        width,
        generator=task.at(0).generator(purpose, *ids),
        device=task.backbone.device,
    )


def model_features(task: Task[Any], params: Tree, images: Tensor) -> Tensor:
    """Return the features [K, B, d] of uint8 images [K, B, H, W, channels]."""
    model = task.backbone
    if "shared_prompts" in params:
        tokens = insert(model.embed(images), params["shared_prompts"])
        return model.pool(model.blocks(tokens, read="pooled"))
    weights = params.get("weights", {}) | params.get("statistics", {})
    return model.features(images, weights=weights or None)


def model_logits(task: Task[Any], params: Tree, batch: Batch) -> Tensor:
    """Return logits [K, B, C]. Batch norm uses running statistics."""
    return linear(model_features(task, params, batch.images), params["head"])


def model_loss(
    task: Task[Any], params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> Tensor | tuple[Tensor, Tree]:
    """Return the cross-entropy [K, B]. With batch norm, return the moments of the images, too.

    Batch norm then uses the statistics of each client's batch. The moments {name: [K, B, c]} are
    added to counters.
    """
    if "statistics" not in params:
        return cross_entropy(model_logits(task, params, batch), batch.labels)
    logits, moments = task.backbone.forward_batch(
        batch.images, params["head"], params["weights"], batch.mask
    )
    return cross_entropy(logits, batch.labels), moments


def train_model(
    task: Task[Any], received: Tree, clients: Cohort, params: Tree, loss: Loss = model_loss
) -> Trained:
    """Train the body and the head of every client. On a ResNet, also compute running statistics.

    If `params` have running statistics, `loss` must return the moments that `model_loss` returns.
    """
    if "statistics" not in params:
        return train_locally(task, loss, received, clients, params=params)

    # statistics are not trained: counters sum the moments of the images, whose mean they are
    names = tuple(name for name in params if name != "statistics")
    counters = task.backbone.init_counters(len(clients))
    trained = train_locally(
        task, loss, received, clients, params=params, train=names, counters=counters
    )
    trained.params["statistics"] = task.backbone.statistics(trained.counters)
    return trained
