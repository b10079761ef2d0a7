"""Prompts that are selected from a pool by keys and queries, as PFPT does.

The selection is that of Wang et al., "Learning to Prompt" (CVPR 2022):

1. The query of an image is the final class token of the frozen backbone without prompts.
2. A prompt is its own key.
3. A client uses the prompts that most of its training images select. The server's model has no
   training images, so it selects prompts for each image that it predicts.

Methods that average shallow prompts keep the pool in `params[POOL]`. A client trains the prompts
that it has picked (`train_picked`). The server averages each prompt over the clients that picked it
(`mean_of_picked`). Without the option `selection` there is no pool, and clients train all prompts.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.backbones.vit import FrozenViT
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import Tree
from fedloom.data.batch import Batch
from fedloom.federated.groups import iterate_examples
from fedloom.federated.local_training import Loss, train_locally
from fedloom.federated.task import Cohort, Task, Update
from fedloom.hooks.defaults import mean
from fedloom.toolbox.shallow import shallow_logits, shallow_loss, shallow_params
from fedloom.toolbox.training import make_updates

POOL = "shared_prompts"


def cosine_similarity(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the cosines [K, B, P] between queries [K, B, d] and keys [K, P, d]."""
    return F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).mT


@torch.no_grad()
def top_prompts(task: Task, clients: Cohort, prompts: Tensor, count: int) -> Tensor:
    """Return the indices [K, n] of the `count` prompts that each client selects, ascending.

    Every training image votes for the `count` prompts with the highest cosine to its query. The
    prompts with the most votes are selected. Of prompts with equal votes, the one with the higher
    sum of cosines wins. If there are fewer than `count` prompts, all are selected.

    Args:
        prompts: [K, P, d].
    """
    count = min(count, prompts.shape[1])

    # the votes for every prompt, and its sum of cosines, [K, P] each
    votes = torch.zeros(prompts.shape[:2], dtype=torch.float64, device=prompts.device)
    total = torch.zeros_like(votes)
    for batch in iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        cosines = cosine_similarity(batch.features, prompts)  # [K, B, P]
        chosen = torch.zeros_like(cosines).scatter_(-1, cosines.topk(count).indices, 1)
        votes += (chosen * batch.mask[..., None]).sum(1)
        total += (cosines.double() * batch.mask[..., None]).sum(1)

    # sort by sums, then by votes; a stable sort keeps prompts with equal votes sorted by sums
    by_total = total.argsort(dim=1, descending=True, stable=True)
    by_votes = votes.gather(1, by_total).argsort(dim=1, descending=True, stable=True)
    return by_total.gather(1, by_votes)[:, :count].sort().values


def init_params(task: Task[FrozenViT]) -> Tree:
    """Return a head and prompts, without a client axis.

    There are `options.prompts` prompts [P, d], or with the option `selection` a pool of
    `options.pool`.

    Raises:
        FedLoomError: the pool holds fewer prompts than each client picks.
    """
    options = task.options
    if options.selection and options.pool < options.prompts:
        raise FedLoomError(
            f"{task.method}: option prompts is {options.prompts}, but the pool holds "
            f"{options.pool}; raise pool"
        )

    count = options.prompts
    if options.selection:
        count = options.pool
    return shallow_params(task, count)


def gather_prompts(prompts: Tensor, indices: Tensor) -> Tensor:
    """Return the prompts [K, n, d] at indices [K, n] of prompts [K, P, d]."""
    return prompts.gather(1, indices[..., None].expand(-1, -1, prompts.shape[-1]))


def prompts_for_prediction(
    task: Task, clients: Cohort, batch: Batch, prompts: Tensor, count: int
) -> Tensor:
    """Return the prompts to predict with: `count` of the prompts [K, P, d], or all if P <= count.

    Returns:
        For clients, prompts [K, n, d] that each client's training images select. For the server's
        model, which has no training images, prompts [1, B, n, d] that each image of the batch
        selects.
    """
    if prompts.shape[1] <= count:
        return prompts

    # clients select by their training images, and the server's model by each image of the batch
    if not clients.is_server_model:
        return gather_prompts(prompts, top_prompts(task, clients, prompts, count))
    cosines = cosine_similarity(batch.features, prompts)  # [1, B, P]
    return prompts[0][cosines.topk(count).indices.sort().values]  # [1, B, n, d]


def train_picked(
    task: Task, received: Tree, clients: Cohort, loss: Loss = shallow_loss
) -> list[Update]:
    """Train the head and the picked prompts of every client, and return the clients' uploads.

    A client picks `options.prompts` prompts of the pool.
    """
    params = received["params"]
    count = task.options.prompts

    # with a pool, train only the picked prompts, and upload their indices too
    extras: dict[str, Any] = {}
    if params[POOL].shape[1] > count:
        indices = top_prompts(task, clients, params[POOL], count)  # [K, count]
        picked = {**params, POOL: gather_prompts(params[POOL], indices)}
        received = {**received, "params": picked}
        extras = {"indices": indices}

    trained = train_locally(task, loss, received, clients)
    return make_updates(trained, clients, **extras)


def predict_picked(task: Task[FrozenViT], received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return logits [K, B, C] with the prompts that each client, or each image, picks."""
    params = received["params"]
    prompts = prompts_for_prediction(task, clients, batch, params[POOL], task.options.prompts)
    return shallow_logits(task, {**params, POOL: prompts}, batch)


def mean_of_picked(params: Tree, updates: list[Update], weighted: bool = False) -> Tree:
    """Return the mean of updates of `train_picked`; a prompt's mean is over clients that picked it.

    All other parameters are averaged as `mean` does. A prompt that nobody picked stays as it was.

    Args:
        params: the server's parameters before.
        weighted: True weighs each client by its number of training images.
    """
    averaged = mean(updates, weighted)
    if "indices" not in updates[0].payload:
        return averaged

    # for each prompt, sum over the clients that picked it: the weighted prompts, and the weights
    pool = params[POOL]
    total = torch.zeros_like(pool)
    weight = torch.zeros_like(pool[:, :1])
    for update in updates:
        indices = update.payload["indices"]
        share = 1
        if weighted:
            share = update.num_examples
        total[indices] += share * update.payload["params"][POOL]
        weight[indices] += share

    # a prompt that nobody picked stays as it was
    prompts = torch.where(weight > 0, total / weight.clamp(min=1), pool)
    return {**averaged, POOL: prompts}
