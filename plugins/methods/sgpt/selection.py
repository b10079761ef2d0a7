"""Which group an image belongs to: the group whose key is nearest to the image's query."""

import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch

from .options import Options

Task = fl.ViTTask[Options]

FLOOR = {"paper": 1e-12, "released": 5e-4}  # added to q


def query(task: Task, token: Tensor) -> Tensor:
    """Return the query h(x) [..., d] of a class token [..., d] from the feature cache.

    The authors' code passes the token through the final norm and a ReLU; the cache holds the final
    token after the norm, and those at the input of a block before it.
    """
    if task.options.variant == "paper":
        return token
    return (task.backbone.final_norm(token) if task.options.query_block else token).relu()


def cosines(task: Task, keys: Tensor, batch: Batch) -> Tensor:
    """Return cos(h(x), k_g) [K, B, G] for keys [K, G, d]; h is the frozen ViT without prompts."""
    token = batch.class_tokens(task.options.query_block or None)  # [K, B, d]
    return fl.cosine_similarity(query(task, token), keys)


def group_while_training(
    options: Options, cosine: Tensor, selected: Tensor, mask: Tensor
) -> Tensor:
    """Return the group of every image while training [K, B] (Eq. 6).

    Args:
        cosine: of queries and keys [K, B, G].
        selected: how often every group was chosen so far, v_g [K, G].
        mask: false where an image only fills up the batch [K, B]; such images have no vote.
    """
    if options.frequency:
        q = selected / selected.sum(-1, keepdim=True).clamp(min=1)  # [K, G]
        cosine = (cosine - 1) * (q + FLOOR[options.variant])[:, None]
    groups = cosine.argmax(-1)  # [K, B]
    if options.majority:
        votes = F.one_hot(groups, cosine.shape[-1]) * mask[..., None]
        groups = votes.sum(1).argmax(-1, keepdim=True).expand_as(groups)
    return groups
