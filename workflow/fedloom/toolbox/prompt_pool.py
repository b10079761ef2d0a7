"""Key-query prompt selection (Wang et al., "Learning to Prompt", CVPR 2022), as PFPT takes it up.

The query of an image is the final class token of the frozen, unprompted backbone; a prompt is its
own key. A client works with the prompts that most of its training images select; the server's
model, which has no training images, selects prompts for each image.

For methods that average shallow prompts, the pool is `params[POOL]`: a client trains the prompts
that it picked (`train_picked`), and the server averages a prompt over the clients that picked it
(`mean_of_picked`). Without option `selection` there is no pool, and clients train all prompts.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.backbones.vit import FrozenViT
from fedloom.common.errors import FedLoomError
from fedloom.common.trees import Tree
from fedloom.data.federation import Batch
from fedloom.federated.groups import iterate_examples
from fedloom.federated.local_training import Loss, train_locally
from fedloom.federated.task import Cohort, Task, Update
from fedloom.hooks.defaults import mean
from fedloom.toolbox.shallow import shallow_logits, shallow_loss, shallow_params
from fedloom.toolbox.training import make_updates

POOL = "shared_prompts"


def cosine_similarity(queries: Tensor, keys: Tensor) -> Tensor:
    """Compute the cosines [K, B, P] of queries [K, B, d] and keys [K, P, d]."""
    return F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).mT


@torch.no_grad()
def top_prompts(task: Task, clients: Cohort, prompts: Tensor, count: int) -> Tensor:
    """Select `count` of the prompts [K, P, d] for each client, or all; indices are ascending.

    Every training image votes for the `count` prompts of the highest cosine. Where votes are equal,
    the prompt with the higher sum of cosines is taken.
    """
    count = min(count, prompts.shape[1])

    # the votes, and the sums of cosines, of every prompt [K, P]
    votes = torch.zeros(prompts.shape[:2], dtype=torch.float64, device=prompts.device)
    total = torch.zeros_like(votes)
    for batch in iterate_examples(task, [task.data.train[k] for k in clients.ids]):
        cosines = cosine_similarity(batch.features, prompts)  # [K, B, P]
        chosen = torch.zeros_like(cosines).scatter_(-1, cosines.topk(count).indices, 1)
        votes += (chosen * batch.mask[..., None]).sum(1)
        total += (cosines.double() * batch.mask[..., None]).sum(1)

    # sorted by votes; the sort is stable, so prompts with equal votes stay sorted by their sums
    by_total = total.argsort(dim=1, descending=True, stable=True)
    by_votes = votes.gather(1, by_total).argsort(dim=1, descending=True, stable=True)
    return by_total.gather(1, by_votes)[:, :count].sort().values


def init_params(task: Task[FrozenViT]) -> Tree:
    """Make a head and `options.prompts` prompts [P, d], of them `options.pool` with `selection`."""
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
    """Return the prompts [K, n, d] of [K, P, d] at indices [K, n]."""
    return prompts.gather(1, indices[..., None].expand(-1, -1, prompts.shape[-1]))


def prompts_for_prediction(
    task: Task, clients: Cohort, batch: Batch, prompts: Tensor, count: int
) -> Tensor:
    """Select `count` of the prompts [K, P, d] to predict with, or all.

    Returns:
        Prompts [K, n, d] that each client's training images select; for the server's model, which
        has none, prompts [1, B, n, d] that each image of the batch selects.
    """
    if prompts.shape[1] <= count:
        return prompts

    # clients select by their training images, the server's model by each image of the batch
    if not clients.is_server_model:
        return gather_prompts(prompts, top_prompts(task, clients, prompts, count))
    cosines = cosine_similarity(batch.features, prompts)  # [1, B, P]
    return prompts[0][cosines.topk(count).indices.sort().values]  # [1, B, n, d]


def train_picked(
    task: Task, received: Tree, clients: Cohort, loss: Loss = shallow_loss
) -> list[Update]:
    """Let every client train, and upload, the head and the `options.prompts` prompts it picks."""
    params = received["params"]
    count = task.options.prompts

    # from a pool, train the picked prompts alone, and upload which they are
    extras: dict[str, Any] = {}
    if params[POOL].shape[1] > count:
        indices = top_prompts(task, clients, params[POOL], count)  # [K, count]
        picked = {**params, POOL: gather_prompts(params[POOL], indices)}
        received = {**received, "params": picked}
        extras = {"indices": indices}

    trained = train_locally(task, loss, received, clients)
    return make_updates(trained, clients, **extras)


def predict_picked(task: Task[FrozenViT], received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Compute logits [K, B, C] with the prompts that each client, or each image, picks."""
    params = received["params"]
    prompts = prompts_for_prediction(task, clients, batch, params[POOL], task.options.prompts)
    return shallow_logits(task, {**params, POOL: prompts}, batch)


def mean_of_picked(params: Tree, updates: list[Update], weighted: bool = False) -> Tree:
    """Average updates of `train_picked` as `mean` does, but a prompt over those that picked it."""
    averaged = mean(updates, weighted)
    if "indices" not in updates[0].payload:
        return averaged

    # each prompt's weighted sum, and its weights, over the clients that picked it
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
