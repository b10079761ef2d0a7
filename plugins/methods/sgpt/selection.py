"""Which group an image belongs to: the group whose key is nearest to the image's query."""

import torch.nn.functional as F
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch

from .options import Options

Task = fl.ViTTask[Options]

FLOOR = {"paper": 1e-12, "released": 5e-4}  # added to q_g


def query(task: Task, token: Tensor) -> Tensor:
    """Return the query h(x) [..., d] of a class token [..., d] from the feature cache.

    In the paper it is the token itself. The authors' code applies the final norm and a ReLU. In the
    cache, the final token has already passed the final norm, and tokens at the input of a block
    have not.
    """
    if task.options.variant == "paper":
        return token
    return (task.backbone.final_norm(token) if task.options.query_block else token).relu()


def cosines(task: Task, keys: Tensor, batch: Batch) -> Tensor:
    """Return cos(h(x), k_g) [K, B, G] between the queries of images and the keys [K, G, d]."""
    token = batch.class_tokens(task.options.query_block or None)  # [K, B, d]
    return fl.cosine_similarity(query(task, token), keys)


def group_while_training(
    options: Options, cosine: Tensor, selected: Tensor, mask: Tensor
) -> Tensor:
    """Return the group of each image in training [K, B]: argmin_g q_g (1 - cos(h(x), k_g)) (Eq. 6).

    q_g is the share of group g in all selections so far. With `frequency: false`, the nearest key
    wins. With `majority`, all images of a batch get the group that most of them chose.

    Args:
        cosine: cosines of queries and keys [K, B, G].
        selected: number of selections of each group so far, v_g [K, G].
        mask: bool [K, B], false for images that only fill up the batch; they have no vote.
    """
    if options.frequency:
        q = selected / selected.sum(-1, keepdim=True).clamp(min=1)  # [K, G]
        cosine = (cosine - 1) * (q + FLOOR[options.variant])[:, None]
    groups = cosine.argmax(-1)  # [K, B]
    if options.majority:
        votes = F.one_hot(groups, cosine.shape[-1]) * mask[..., None]
        groups = votes.sum(1).argmax(-1, keepdim=True).expand_as(groups)
    return groups
