"""PFPT: match clients' prompts, as sets, to a pool of summarising prompts that may grow.

Weng et al., "Probabilistic Federated Prompt-Tuning with Non-IID and Imbalanced Data", NeurIPS 2024.
Equation numbers are the paper's. What it leaves open, and how we read it (`variant: released`
follows the authors' code; released.py lists where it differs):

- L1 + L2 as printed has no maximum: alpha -> 0 on a prompt of one client alone is unbounded. We
  bound alpha from below (option `separation`).
- Eq. 14's second sum, as printed, runs over all candidates, so it is the same for any assignment,
  and a candidate that lies on an uploaded prompt beats all others at no cost. Tried: it takes many
  rounds until some prompt does not open a phi of its own (`unused_prompts: penalised`). By default
  the sum runs over the phi_i in use, since Algorithm 1 (line 8) drops the others from Phi. To open
  phi_i then costs sum_t log(1 - sigma(g(phi_i))): much where clients use the same prompts and
  little where they do not, as Section 3.2.3 wants it. The cost stays linear in z_t for fixed z_-t.
- The candidates are the server's Phi and every uploaded prompt, equal ones once. At first, clients
  are assigned to Phi alone. Each turn is gradient ascent, then assignment; the other way round,
  clients would be matched to prompts that have not moved with them. Turns end when no assignment
  changes.
- Ascent starts from the mean of the prompts assigned to each phi, the maximum for constant g and
  alpha. It returns its best point, or its origin where that is better: no half-step lowers L1 + L2.
- Candidates are standardised to mean 0 and mean variance 1. That changes L1 by a constant, and
  `separation` and `server_lr` mean the same for any backbone and round. alpha is
  (1 + softplus(network)) times its bound. The networks of g and alpha are kept from round to round
  and have the size that they have in the released code.
- Eq. 3 has personal heads (its max should read min), but accuracy is on a *global* test set: heads
  are averaged, weighted by training images (option `head`). With `head: personal`, clients that
  never trained and the server's model use the mean of the trained heads.
- A client picks prompts once a round, by the votes of its training images; the server's model picks
  them for every image (fedloom/toolbox/prompt_pool.py).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, PersonalStates, Tree, Update, ViTTask

from . import artefacts, matching, networks, released


@fl.hookimpl
def init_server(task: ViTTask) -> Tree:
    """Draw the pool Phi, a head and the networks of g and alpha."""
    vit, options = task.backbone, task.options
    if options.prompts > options.pool:
        raise fl.FedLoomError(
            f"pfpt: option prompts: {options.prompts} cannot be picked from a pool of "
            f"{options.pool}; raise pool"
        )
    pool = vit.init_prompts(options.pool, task.generator("shared prompts"))  # Phi [n, d]
    params: Tree = {"shared_prompts": pool}
    if options.head == "averaged":
        params["head"] = init_head(task)
    history = artefacts.start_history(pool)
    if options.variant == "released":
        return {"params": params | {"query": released.init_query(task)}, "history": history}
    return {"params": params, "history": history, "nets": networks.init_nets(task)}


@fl.hookimpl
def init_client(task: ViTTask) -> Tree:
    """Return a fresh head if heads are personal (Eq. 3)."""
    return {"head": init_head(task)} if task.options.head == "personal" else {}


@fl.hookimpl
def unseen_client_state(task: ViTTask, states: PersonalStates) -> Tree | None:
    """Return the mean of the trained heads if heads are personal."""
    if task.options.head == "personal" and states:
        return {"head": states.mean("head")}
    return None


def init_head(task: ViTTask) -> Tensor | Tree:
    """Return a classifier before training, the same for all clients."""
    if task.options.variant == "released":
        return released.init_head(task)
    return task.backbone.init_head(task.num_classes)


@fl.hookimpl
def client_update(task: ViTTask, received: Tree, clients: Cohort) -> list[Update]:
    """Pick prompts of the pool, train them and the head, and upload both (Algorithm 1)."""
    if task.options.variant == "released":
        return released.client_update(task, received, clients)
    params = received["params"] | clients.state  # a personal head is the client's own
    pool = params["shared_prompts"]  # [K, n, d]
    picked = fl.gather_prompts(pool, fl.top_prompts(task, clients, pool, task.options.prompts))
    params = params | {"shared_prompts": picked}  # [K, n_t, d]
    trained = fl.train_locally(task, fl.shallow_loss, received, clients, params=params)
    return fl.make_updates(trained, clients, kept=clients.state)


@fl.hookimpl
def aggregate(task: ViTTask, server: Tree, updates: list[Update]) -> Tree:
    """Average the heads, and summarise the uploaded prompts as the next pool (Eq. 11)."""
    updates = sorted(updates, key=lambda update: update.client)
    params = fl.mean(updates, weighted=True)  # the head, and the query layer of the released code
    uploaded = torch.stack([update.payload["params"]["shared_prompts"] for update in updates])
    state: Tree = {}
    if task.options.variant == "released":
        union = torch.stack([update.payload["picked"] for update in updates]).any(0)  # [n]
        pool = released.summarise(task, uploaded[:, union])
    else:
        phi = server["params"]["shared_prompts"]  # [n, d]
        pool, state["nets"] = matching.summarise(task.options, phi, uploaded, server["nets"])
    state["params"] = params | {"shared_prompts": pool}
    return state | {"history": artefacts.extend_history(task, server["history"], pool)}


@fl.hookimpl
def predict(task: ViTTask, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    """Return logits [K, B, C] with the prompts that the client, or the image, picks."""
    params = received["params"] | clients.state
    if task.options.variant == "released":
        return released.logits(task, params, batch)
    pool, count = params["shared_prompts"], task.options.prompts
    prompts = fl.prompts_for_prediction(task, clients, batch, pool, count)
    return fl.shallow_logits(task, params | {"shared_prompts": prompts}, batch)


@fl.hookimpl
def artefact(
    task: ViTTask, server: Tree, cohorts: Iterator[tuple[Tree, Cohort, Batch]], name: str
) -> dict[str, list]:
    """Return the pool's size by round (Fig. 4), or its prompts over rounds (Fig. 3 and 5)."""
    history = server["history"]
    return artefacts.sizes(history) if name == "pool_sizes" else fl.history_rows(history)
