"""SGPT: train prompts that all images share and prompts of an image's group, in turn.

Deng et al., "Unlocking the Potential of Prompt-Tuning in Bridging Generalized and Personalized
Federated Learning" (CVPR 2024). Equation and algorithm numbers are the paper's. Block I of
Algorithm 1 trains shared prompts, and block II trains group prompts. This is what the paper leaves
open, and how we read it (`variant: released` follows the authors' code; released.py lists where it
differs):

- Prompts are deep: at each of their blocks in the ViT they replace those of the block before. Those
  of their last block are carried on. Blocks with shared prompts come before blocks with group
  prompts.
- Block I classifies by the class token. Block II and inference classify by the mean of the class
  token and the tokens of the group prompt, each after the final norm.
- q_g is the share of group g in all selections that block II made in earlier rounds. It is fixed
  within a round, so that the order of clients cannot matter. A group that nobody has chosen yet has
  q_g = 0 and beats all others. Among several such groups, as in round 1, the nearest key wins,
  which is the limit of a small q.
- In training, the same selection (Eq. 6) is used for the key and for the prompt. Inference uses Eq.
  5.
- alpha_i = N_i / N of Algorithm 2 would not sum to 1 over a sample of clients. So N counts the
  images of the sampled clients. Line 19 prints v_g where p_g is meant. Momentum starts in round 2,
  from the first aggregate. A group that nobody chose in a round keeps its key.
- Keys start orthonormal (Algorithm 3), prompts as VPT's do, and the head at zero and without bias.
- `bcd: group_first` runs the two blocks of Algorithm 1 unchanged in the other order. Block II then
  comes first, with the shared prompts in place and frozen. Block I follows, without group prompts.
  Every block trains for E epochs, so an ablation with a single block trains half as long.
- For feature heterogeneity, the paper selects by "the class token of the 5th layer". We read this
  as the class token at the input of block 6 (`query_block: 6`).
- A held-out client and the server's model use only the global state.
- The reported training loss is the cross-entropy without L_key, averaged over all steps of a round,
  as for every method. These are the steps of block I, without group prompts, and those of block II.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, Trained, Tree, Update

from . import artefacts, initial, released
from .losses import group_loss, shared_loss
from .options import Options
from .prompted import logits
from .selection import cosines

Task = fl.ViTTask[Options]

BLOCK_I = ("head", "shared_prompts")
BLOCK_II = ("head", "group_prompts", "keys")


@fl.hookimpl
def init_server(task: Task) -> Tree:
    """Draw the parameters; with groups, also start the counts of selections at zero."""
    initial.check_options(task.options, task.backbone.depth)
    params = initial.params(task)
    if not task.options.group:
        return {"params": params}
    groups = task.options.groups
    device = task.backbone.device
    selected = torch.zeros(groups, dtype=torch.float64, device=device)  # v_g [G]
    history = artefacts.empty_history(groups, device)
    return {"params": params, "constants": {"selected": selected}, "history": history}


def blocks(options: Options) -> list[str]:
    """Return the blocks of Algorithm 1 in the order in which a client trains them (Table 3)."""
    if not options.group:
        return ["I"]
    if not options.shared:
        return ["II"]
    orders = {"shared_first": ["I", "II"], "group_first": ["II", "I"], "none": ["together"]}
    return orders[options.bcd]


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Train by block coordinate descent (Algorithm 1): block I, then block II."""
    if released.one_after_another(task.options) and len(clients) > 1:
        return released.in_turn(client_update, task, received, clients)

    # a phase per block
    params = received["params"]
    sent = {}
    phases: list[Trained] = []
    for phase, block in enumerate(blocks(task.options)):
        if block == "I":  # Eq. 10: no group prompts are inserted
            trained = fl.train_locally(
                task, shared_loss, received, clients, params=params, train=BLOCK_I, phase=phase
            )
        else:
            so_far = received["constants"]["selected"]  # v_g [K, G]
            trained = fl.train_locally(  # Eq. 11: shared prompts stay in, frozen
                task,
                group_loss,
                received,
                clients,
                params=params,
                train=(*BLOCK_II, "shared_prompts") if block == "together" else BLOCK_II,
                phase=phase,
                counters={"selected": so_far},
            )
            sent["selected"] = trained.counters["selected"] - so_far  # N_g^i [K, G]
        params = trained.params
        phases.append(trained)

    *earlier, trained = phases
    return fl.make_updates(trained, clients, earlier=earlier, **sent)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    """Average the uploads (Algorithm 2), then apply momentum to keys and group prompts (Eq. 7)."""
    options = task.options
    before = server["params"]
    as_released = options.variant == "released"
    updates = sorted(updates, key=lambda update: update.client)
    params = fl.mean(updates, weighted=True)  # head and prompts are weighted by N_i / N
    if not options.group:
        return {"params": params}

    # keys, by how many images each client gave to each group
    keys = torch.stack([update.payload["params"]["keys"] for update in updates])  # [K, G, d]
    selected = torch.stack([update.payload["selected"] for update in updates])  # N_g^i [K, G]
    total = selected.sum(0)  # N_g [G]
    share = released.key_shares(selected) if as_released else selected / total.clamp(min=1)
    params["keys"] = torch.einsum("kg,kgd->gd", share.to(keys), keys)

    # momentum
    if task.round > 1 or as_released:
        momentum = {"keys": options.key_momentum, "group_prompts": options.prompt_momentum}
        for name, alpha in momentum.items():
            params[name] = alpha * before[name] + (1 - alpha) * params[name]  # Eq. 7
    if not as_released:
        params["keys"] = params["keys"].where(total[:, None] > 0, before["keys"])

    # counts, and the history for the figures
    constants = {"selected": server["constants"]["selected"] + total}
    history = artefacts.extend_history(server["history"], task.round, updates, selected)
    return {"params": params, "constants": constants, "history": history}


@fl.hookimpl
def predict(task: Task, received: Tree, batch: Batch) -> Tensor:
    """Return logits [K, B, C] with the prompts of the group whose key is nearest (Eq. 5)."""
    params = received["params"]
    if not task.options.group:
        return logits(task, params, batch)
    return logits(task, params, batch, cosines(task, params["keys"], batch).argmax(-1))


@fl.hookimpl
def artefact(
    task: Task, server: Tree, cohorts: Iterator[tuple[Tree, Cohort, Batch]], name: str
) -> dict[str, list]:
    """Return selections by client and round (Fig. 2c, 3), or groups beside k-means (App. D.2)."""
    if name == "group_counts":
        return artefacts.group_counts(server["history"])
    return artefacts.groups_of_images(task, server["params"]["keys"])
