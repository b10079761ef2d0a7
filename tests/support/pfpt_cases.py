"""PFPT's modules, and small clients and pools of it for its tests."""

import torch

from first_round import first_cohort, module

matching, networks, released, artefacts = (
    module("pfpt", name) for name in ("matching", "networks", "released", "artefacts")
)

SMALL = {"prompts": 3, "pool": 6}


def moved_prompts(seed, clients=4, each=3, width=6, spread=0.3, pool=7):
    """Return a pool [n, d], and what clients made of some of its prompts [m, n_t, d]."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(pool, width, generator=generator)
    picked = [torch.randperm(pool, generator=generator)[:each] for _ in range(clients)]
    moved = spread * torch.randn(clients, each, width, generator=generator)
    return phi, torch.stack([phi[p] for p in picked]) + moved


def small_nets(tiny, width, **options):
    """Return options, and networks for prompts of this width."""
    task, _ = tiny("pfpt", **options)
    task.backbone.width = width
    return task.options, networks.init_nets(task)


def after_training(tiny, **options):
    """Return task, hooks, server, and what three clients received, are, and sent in round 1."""
    task, hooks = tiny("pfpt", **SMALL | options)
    server = hooks.init_server(task=task)
    received, clients, _ = first_cohort(task, hooks, server=server)
    updates = hooks.client_update(task=task.at(1), received=received, clients=clients)
    for update, client in zip(updates, clients.ids, strict=True):
        update.client = client
    return task.at(1), hooks, server, received, clients, updates
