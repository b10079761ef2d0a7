"""One round of federated training, and all clients' evaluation after it."""

import time
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from fedloom.engine.guard import check_updates
from fedloom.engine.passes import slices
from fedloom.engine.task import Task, cohort
from fedloom.engine.tree import Tree, count_bytes, stack
from fedloom.errors import FedLoomError

EVALUATED_AT_ONCE = 8


@dataclass
class State:
    """All that a run carries from one round to the next.

    Attributes:
        clients: personal states of the clients that took part so far, by id.
    """

    server: Tree
    clients: dict[int, Tree] = field(default_factory=dict)

    def tree(self) -> Tree:
        """As one tree, for a file."""
        clients = {str(k): state for k, state in sorted(self.clients.items())}
        seen = torch.tensor(sorted(self.clients), dtype=torch.int64)
        return {"server": self.server, "clients": clients, "seen": seen}

    @classmethod
    def of(cls, tree: Tree) -> "State":
        kept = tree.get("clients", {})  # a file holds no empty branches
        return cls(tree["server"], {k: kept.get(str(k), {}) for k in tree["seen"].tolist()})


def _personal(task: Task, hooks, state: State, client: int) -> Tree:
    known = state.clients.get(client)
    return hooks.init_client(task=task.at(0), client=client) if known is None else known


def train_round(task: Task, hooks, state: State) -> tuple[State, dict]:
    """Round `task.round`: sample, send, train, check, aggregate.

    Returns:
        The next state and a row of rounds.parquet.

    Raises:
        FedLoomError: an upload that is not finite or of another shape than the others.
    """
    started = time.perf_counter()
    ids = sorted(hooks.select_clients(task=task))
    sent = [hooks.download(task=task, server=state.server, client=k) for k in ids]
    personal = [_personal(task, hooks, state, k) for k in ids]
    groups = [range(len(ids))] if task.stacked else [[k] for k in range(len(ids))]
    updates = []
    for group in groups:
        members = cohort(task, [ids[k] for k in group], [personal[k] for k in group])
        received = stack([sent[k] for k in group])
        updates += hooks.client_update(task=task, received=received, clients=members)
    check_updates(task.round, ids, updates)
    for client, update in zip(ids, updates, strict=True):
        update.client = client
    server = hooks.aggregate(task=task, server=state.server, updates=updates)
    clients = state.clients | {u.client: u.client_state for u in updates}
    row = {
        "round": task.round,
        "seconds": time.perf_counter() - started,
        "bytes_up": sum(count_bytes(u.payload) for u in updates),
        "bytes_down": sum(count_bytes(tree) for tree in sent),
        "train_loss": sum(u.metrics["train_loss"] for u in updates) / len(updates),
        "clients": len(ids),
    }
    return State(server, clients), row


@torch.no_grad()
def evaluate(task: Task, hooks, state: State) -> list[dict]:
    """Every client on its own test images: rows of evaluation.parquet, by client id.

    Raises:
        FedLoomError: a prediction that is not finite.
    """
    width = EVALUATED_AT_ONCE if task.stacked else 1
    by_size = sorted(range(task.data.num_clients), key=lambda k: (len(task.data.test[k]), k))
    rows = []
    for start in range(0, len(by_size), width):
        ids = sorted(by_size[start : start + width])
        received = stack([hooks.download(task=task, server=state.server, client=k) for k in ids])
        clients = cohort(task, ids, [_personal(task, hooks, state, k) for k in ids])
        correct, loss = torch.zeros(len(ids)), torch.zeros(len(ids))
        for batch in slices(task, [task.data.test[k] for k in ids]):
            logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
            finite = logits.isfinite().all(-1).all(-1)
            if not finite.all():
                client = ids[int(finite.int().argmin())]
                raise FedLoomError(
                    f"round {task.round}, client {client}: predictions are not finite; lower "
                    "training.lr or set training.clip"
                )
            hits = (logits.argmax(-1) == batch.labels) & batch.mask
            losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
            correct += hits.sum(1).cpu()
            loss += losses.view_as(batch.mask).where(batch.mask, 0).sum(1).cpu()
        for k, client in enumerate(ids):
            count = len(task.data.test[client])
            rows.append(
                {
                    "round": task.round,
                    "client_id": client,
                    "domain": task.data.domains[client],
                    "participating": client in task.data.participating,
                    "num_test": count,
                    "num_correct": int(correct[k]),
                    "loss": float(loss[k]) / count,
                }
            )
    return sorted(rows, key=lambda row: row["client_id"])
