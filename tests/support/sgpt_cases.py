"""SGPT's arithmetic on one image at a time."""

import numpy as np
import torch

from fedloom.common.trees import tensor_map
from fedloom.federated.task import cohort
from first_round import module

losses, prompted, selection = (module("sgpt", name) for name in ("losses", "prompted", "selection"))


def reference_group(h, keys, selected, floor):
    """Return the group that Eq. 6 gives to one image, computed group by group."""
    q = selected / max(selected.sum(), 1)
    scores = [
        (h @ k / np.linalg.norm(h) / np.linalg.norm(k) - 1) * (share + floor)
        for k, share in zip(keys, q, strict=True)
    ]
    return int(np.argmax(scores))


def drawn_task(tiny):
    """Return make(**options): a task, its hooks, and two clients with different parameters."""

    def make(**options):
        task, hooks = tiny("sgpt", groups=4, shared_prompts=2, group_prompts=3, **options)
        ids = task.data.participating[:2]
        rng = torch.Generator().manual_seed(0)
        shapes = hooks.init_server(task=task)["params"]
        params = tensor_map(lambda v: torch.randn(2, *v.shape, generator=rng), shapes)
        selected = torch.tensor([[5.0, 9, 1, 3], [4, 4, 4, 6]]).double()
        received = {"params": params, "constants": {"selected": selected}}
        batch = task.data.batch([task.data.train[k][:6] for k in ids])
        return task, hooks, received, cohort(task, ids, [{}, {}]), batch

    return make


def reference_query(model, token, query_block, released):
    """Return h(x) [d] in float64 from a class token [d].

    The released code norms and rectifies it.
    """
    h = token.double()
    if released:  # the cached final token is normed already
        h = (model.norm(h) if query_block else h).relu()
    return h.numpy()
