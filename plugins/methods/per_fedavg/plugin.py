"""Per-FedAvg: the clients train a model that one step on a client's own images makes its own.

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach" (NeurIPS 2020). The objective is the mean over clients of f_i(w - alpha grad
f_i(w)). A local step of Algorithm 1 is

    w~ = w - alpha grad f(w, D),   w <- w - beta (I - alpha H(w, D'')) grad f(w~, D')

with batches D, D' and D'' of the client. Two variants avoid the Hessian H:

- `fo` leaves out the term with H.
- `hf` approximates H g by [grad f(w + delta g, D'') - grad f(w - delta g, D'')] / (2 delta), where
  g is grad f(w~, D').

Choices where the papers leave one open:

- pFedPG's rows train the whole ViT, and do not say with which variant. The option `train` freezes
  all weights but some, or trains prompts before a frozen ViT.
- The images of a batch are dealt in turn to D and D' (and to D'' with `hf`). If a batch has too few
  images for this, each of them gets the whole batch. beta is the learning rate of `training`.
  Momentum, weight decay and clipping of `training` apply to the meta-gradient.
- For a test, each client takes `adaptation_steps` steps. Each step follows the gradient over all of
  the client's training images, as in the objective. The server's model does not adapt.
- The reported loss is the loss at w~ on D'.

There is no official code.
"""

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Tree, Update

from .options import Options

Task = fl.ViTTask[Options]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    return {"params": fl.init_model(task)}


def split_batch(mask: Tensor, count: int) -> list[Tensor]:
    """Deal the images of a batch in turn to `count` parts, and return the weights of each part.

    The weights [K, B] are 1 / n at the n images of the part, and 0 elsewhere. If a client has fewer
    images in the batch than there are parts, each of its parts is the whole batch.

    Args:
        mask: bool [K, B], true for a client's images, which come before the padding.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    enough = mask.sum(1, keepdim=True) >= count  # [K, 1]
    parts = [mask & ((position % count == i) | ~enough) for i in range(count)]
    return [part / part.sum(1, keepdim=True) for part in parts]


def entropies(task: Task, params: Tree, batch: Batch) -> Tensor:
    """Compute the cross-entropy [K, B] of every image."""
    return fl.cross_entropy(fl.model_logits(task, params, batch), batch.labels)


def gradient(task: Task, params: Tree, batch: Batch, weights: Tensor) -> tuple[Tree, Tensor]:
    """Return each client's gradient [K, ...] of its weighted loss, and the losses [K, B].

    Args:
        weights: the weight of each image in the loss [K, B].
    """
    params = fl.tensor_map(lambda v: v.detach().requires_grad_(), params)
    values = entropies(task, params, batch)
    return fl.gradients((weights * values).sum(), params), values.detach()


def step_along(params: Tree, direction: Tree, step: float) -> Tree:
    """Return params + step * direction, without a gradient; all trees are {name: [K, ...]}."""
    return fl.tensor_map(lambda v, g: v.detach() + step * g, params, direction)


def meta_gradient(task: Task, params: Tree, batch: Batch) -> tuple[Tree, Tensor]:
    """Compute the meta-gradient [K, ...] of each client.

    With w~ = w - alpha grad f(w, D) and g = grad f(w~, D'), it is g for `variant: fo`. For `hf` it
    is g - alpha [grad f(w + delta g, D'') - grad f(w - delta g, D'')] / (2 delta).

    Returns:
        The meta-gradient, and the losses [K, B] at w~ times their weights. The sum over a client's
        images is its mean loss on D'.
    """
    alpha = task.options.alpha
    delta = task.options.delta
    # weights of D, D' and, for hf, D''
    first, second, *third = split_batch(batch.mask, 2 if task.options.variant == "fo" else 3)
    own, _ = gradient(task, params, batch, first)
    result, values = gradient(task, step_along(params, own, -alpha), batch, second)
    if third:
        ahead, behind = (
            gradient(task, step_along(params, result, step), batch, third[0])[0]
            for step in (delta, -delta)
        )
        result = fl.tensor_map(
            lambda g, a, b: g - alpha * (a - b) / (2 * delta), result, ahead, behind
        )
    return result, second * values


def loss(
    task: Task, params: Tree, received: Tree, clients: Cohort, batch: Batch
) -> tuple[Tensor, Tree]:
    """Compute a term [K, B] whose gradient is the meta-gradient, and report the loss at w~.

    The term is the inner product of the parameters and the meta-gradient, the same for all images
    of a client. `train_locally` takes the mean over images, so the term stays as it is. The
    reported losses are multiplied by the number of images, so that their mean is the loss on D'.
    """
    wanted, values = meta_gradient(task, params, batch)
    pairs = zip(fl.leaves(params), fl.leaves(wanted), strict=True)
    term = torch.stack([(v * g).flatten(1).sum(1) for (_, v), (_, g) in pairs]).sum(0)  # [K]
    images = batch.mask.sum(1, keepdim=True)
    return term[:, None].expand(values.shape), {"reported_loss": images * values}


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    return fl.make_updates(fl.train_locally(task, loss, received, clients), clients)


@fl.hookimpl
def personalize(task: Task, received: Tree, clients: Cohort) -> Tree:
    params = received["params"]
    examples = torch.tensor(clients.num_examples, device=task.backbone.device)[:, None]  # [K, 1]
    for _ in range(task.options.adaptation_steps):
        total = fl.tensor_map(torch.zeros_like, params)
        for batch in fl.iterate_examples(task, [task.data.train[k] for k in clients.ids]):
            part, _ = gradient(task, params, batch, batch.mask / examples)
            total = fl.tensor_map(torch.add, total, part)
        params = step_along(params, total, -task.options.alpha)
    return params


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return fl.model_logits(task, received["params"] | clients.state, batch)  # [K, B, C]
