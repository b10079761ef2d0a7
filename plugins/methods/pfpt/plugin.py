"""PFPT: match clients' prompts, as sets, to a pool of summarising prompts that may grow.

Weng et al., "Probabilistic Federated Prompt-Tuning with Non-IID and Imbalanced Data" (NeurIPS
2024). Equation numbers are the paper's. This is what the paper leaves open, and how we read it
(`variant: released` follows the authors' code; released.py lists where it differs):

- L1 + L2 as printed has no maximum. If a prompt belongs to only one client, alpha -> 0 makes the
  sum unbounded. We bound alpha from below (option `separation`).
- Eq. 14's second sum, as printed, runs over all candidates. So it is the same for any assignment,
  and a candidate that equals an uploaded prompt beats all others at no cost. We tried this
  (`unused_prompts: penalised`): it takes many rounds until some prompt does not open a phi of its
  own.
- By default, the second sum runs over the phi_i in use, because Algorithm 1 (line 8) drops the
  others from Phi. To open phi_i then costs sum_t log(1 - sigma(g(phi_i))). This is much where
  clients use the same prompts, and little where they do not, as Section 3.2.3 wants. The cost stays
  linear in z_t for fixed z_-t.
- The candidates are the server's Phi and every uploaded prompt; equal ones count once. At first,
  clients are assigned only to Phi. Each turn is gradient ascent, and then assignment. In the other
  order, clients would be matched to prompts that have not moved with them. Turns end when no
  assignment changes.
- Ascent starts from the mean of the prompts assigned to each phi. For constant g and alpha, this is
  the maximum. It returns its best point, or its start if that is better. So neither half of a turn
  lowers the sum of L1 and L2.
- Candidates are standardised to mean 0 and mean variance 1. This changes L1 by a constant. It makes
  `separation` and `server_lr` mean the same for any backbone and round. alpha is (1 +
  softplus(network)) times its bound. The networks of g and alpha are kept from round to round, and
  are as large as in the released code.
- Eq. 3 has personal heads (its max should read min), but accuracy is on a *global* test set. So
  heads are averaged, weighted by training images (option `head`). With `head: personal`, clients
  that never trained and the server's model use the mean of the trained heads.
- A client picks prompts once a round, by the votes of its training images. With the server's model,
  each image picks its prompts (fedloom/toolbox/prompt_pool.py).
"""

from collections.abc import Iterator
from types import ModuleType

from torch import Tensor

import fedloom.toolbox as fl
from fedloom.toolbox import Batch, Cohort, PersonalStates, Tree, Update

from . import artefacts, paper, released
from .options import Options

Task = fl.ViTTask[Options]


def variant(task: Task) -> ModuleType:
    """Return the module that holds the steps of the chosen variant."""
    return {"paper": paper, "released": released}[task.options.variant]


@fl.hookimpl
def init_server(task: Task) -> Tree:
    """Draw the pool Phi, a head unless heads are personal, and what else the variant trains."""
    options = task.options
    if options.prompts > options.pool:
        raise fl.FedLoomError(
            f"pfpt: option prompts: {options.prompts} cannot be picked from a pool of "
            f"{options.pool}; raise pool"
        )
    pool = task.backbone.init_prompts(options.pool, task.generator("shared prompts"))  # [n, d]
    head = {"head": variant(task).init_head(task)} if options.head == "averaged" else {}
    state = variant(task).init_state(task, {"shared_prompts": pool} | head)
    return state | {"history": artefacts.start_history(pool)}


@fl.hookimpl
def init_client(task: Task) -> Tree:
    """Return a fresh head if heads are personal (Eq. 3), else nothing."""
    return {"head": variant(task).init_head(task)} if task.options.head == "personal" else {}


@fl.hookimpl
def unseen_client_state(task: Task, states: PersonalStates) -> Tree | None:
    """Return the mean of the trained heads if heads are personal."""
    if task.options.head == "personal" and states:
        return {"head": states.mean("head")}
    return None


@fl.hookimpl
def client_update(task: Task, received: Tree, clients: Cohort) -> list[Update]:
    """Train prompts of the pool and the head, and upload both (Algorithm 1)."""
    return variant(task).client_update(task, received, clients)


@fl.hookimpl
def aggregate(task: Task, server: Tree, updates: list[Update]) -> Tree:
    """Average the heads, and summarise the uploaded prompts as the next pool (Eq. 11)."""
    updates = sorted(updates, key=lambda update: update.client)
    params = fl.mean(updates, weighted=True)  # the head, and the query layer of the released code
    pool, kept = variant(task).next_pool(task, server, updates)
    history = artefacts.extend_history(task, server["history"], pool)
    return {"params": params | {"shared_prompts": pool}, "history": history} | kept


@fl.hookimpl
def predict(task: Task, received: Tree, clients: Cohort, batch: Batch) -> Tensor:
    return variant(task).logits(task, received["params"] | clients.state, clients, batch)


@fl.hookimpl
def artefact(
    task: Task, server: Tree, cohorts: Iterator[tuple[Tree, Cohort, Batch]], name: str
) -> dict[str, list]:
    """Return the pool's size by round (Fig. 4), or its prompts over rounds (Fig. 3 and 5)."""
    history = server["history"]
    return artefacts.sizes(history) if name == "pool_sizes" else fl.history_rows(history)
