"""Key-query prompt selection (Wang et al., "Learning to Prompt", CVPR 2022), as PFPT takes it up.

The query of an image is the final class token of the frozen, unprompted backbone; a prompt is its
own key. A client works with the prompts that its own training images ask for most; the server's
model, which has no images of its own, with those that each image asks for.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.data.federation import Batch
from fedloom.engine.passes import slices
from fedloom.engine.task import Cohort, Task


def matches(queries: Tensor, keys: Tensor) -> Tensor:
    """Cosines [K, B, P] of queries [K, B, d] and keys [K, P, d]."""
    return F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).mT


@torch.no_grad()
def asked_for(task: Task, clients: Cohort, prompts: Tensor, count: int) -> Tensor:
    """Which `count` of the prompts [K, P, d] each client works with: places [K, count], ascending.

    Every training image votes for its `count` best matches. Where votes are equal, the prompt with
    the higher sum of cosines is taken. All of them, if there are no more than `count`.
    """
    count = min(count, prompts.shape[1])
    votes, total = torch.zeros(2, *prompts.shape[:2], dtype=torch.float64, device=prompts.device)
    for batch in slices(task, [task.data.train[k] for k in clients.ids]):
        found = matches(batch.features, prompts)
        chosen = torch.zeros_like(found).scatter_(-1, found.topk(count).indices, 1)
        votes += (chosen * batch.mask[..., None]).sum(1)
        total += (found * batch.mask[..., None]).sum(1)
    by_total = total.argsort(1, descending=True, stable=True)
    by_votes = votes.gather(1, by_total).argsort(1, descending=True, stable=True)
    return by_total.gather(1, by_votes)[:, :count].sort().values


def take(prompts: Tensor, places: Tensor) -> Tensor:
    """The prompts [K, n, d] of [K, P, d] at places [K, n]."""
    return prompts.gather(1, places[..., None].expand(-1, -1, prompts.shape[-1]))


def for_client_or_image(
    task: Task, clients: Cohort, batch: Batch, prompts: Tensor, count: int
) -> Tensor:
    """The prompts to predict with: a client's [K, n, d]; for NOBODY each image's [1, B, n, d]."""
    if not clients.nobody:
        return take(prompts, asked_for(task, clients, prompts, count))
    count = min(count, prompts.shape[1])
    places = matches(batch.features, prompts).topk(count).indices.sort().values  # [1, B, n]
    return prompts[0][places]
