"""One round of federated training, and all clients' evaluation after it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from fedloom.engine.guard import check_updates
from fedloom.engine.passes import slices
from fedloom.engine.task import Cohort, Task, cohort
from fedloom.engine.tree import Tree, build, count_bytes, leaves, stack
from fedloom.errors import FedLoomError
from fedloom.hookspecs import NOBODY

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
        """The state of such a tree: keys in order, tensors contiguous, whether from a file or not.

        Else a resumed job could add in another order than one that went on, and differ from it in
        the last bits.
        """
        tree = build(
            (path, value.detach().contiguous() if isinstance(value, torch.Tensor) else value)
            for path, value in leaves(tree)
        )
        server, kept = tree.get("server", {}), tree.get("clients", {})  # empty: not in a file
        return cls(server, {k: kept.get(str(k), {}) for k in tree["seen"].tolist()})


def initial(task: Task, hooks) -> State:
    """The state before round 1; `private` is for wrappers, and they have seen it."""
    server = hooks.init_server(task=task)
    public = {key: value for key, value in server.items() if key != "private"}
    return State.of(State(public).tree())


def _personal(task: Task, hooks, state: State, client: int) -> Tree:
    known = state.clients.get(client)
    return hooks.init_client(task=task.at(0), client=client) if known is None else known


def _evaluated(task: Task, hooks, state: State, client: int) -> Tree:
    """The personal state with which a client is evaluated."""
    if client in state.clients:
        return state.clients[client]
    found = hooks.newcomer(task=task, client=client, states=state.clients)
    return _personal(task, hooks, state, client) if found is None else found


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
    return State.of(State(server, clients).tree()), row


def cohorts(task: Task, hooks, state: State) -> Iterator[tuple[Tree, Cohort]]:
    """All clients, participating or not, in cohorts of about equally many test images."""
    width = EVALUATED_AT_ONCE if task.stacked else 1
    by_size = sorted(range(task.data.num_clients), key=lambda k: (len(task.data.test[k]), k))
    for start in range(0, len(by_size), width):
        yield _sent(task, hooks, state, sorted(by_size[start : start + width]))


def _sent(task: Task, hooks, state: State, ids: list[int]) -> tuple[Tree, Cohort]:
    """What the clients received after the round, and the clients."""
    received = stack([hooks.download(task=task, server=state.server, client=k) for k in ids])
    return received, cohort(task, ids, [_evaluated(task, hooks, state, k) for k in ids])


@torch.no_grad()
def artefact(task: Task, hooks, state: State, name: str) -> dict[str, list]:
    """A method's table for figures, by column.

    Raises:
        FedLoomError: the method has no such table.
    """

    def batches():
        for received, clients in cohorts(task, hooks, state):
            for batch in slices(task, [task.data.test[k] for k in clients.ids]):
                yield received, clients, batch

    table = hooks.artefact(task=task, server=state.server, cohorts=batches(), name=name)
    if table is None:
        raise FedLoomError(f"method {task.method} gives no artefact '{name}' with these options")
    return table


@torch.no_grad()
def evaluate(task: Task, hooks, state: State) -> list[dict]:
    """Every client on its own test images: rows of evaluation.parquet, by client id.

    Raises:
        FedLoomError: a prediction that is not finite.
    """
    rows = []
    for received, clients in cohorts(task, hooks, state):
        images = [task.data.test[k] for k in clients.ids]
        correct, loss = _scored(task, hooks, received, clients, images)
        for k, client in enumerate(clients.ids):
            rows.append(
                {
                    "round": task.round,
                    "client_id": client,
                    "domain": task.data.domains[client],
                    "participating": client in task.data.participating,
                    "num_test": len(images[k]),
                    "num_correct": correct[k],
                    "loss": loss[k] / len(images[k]),
                }
            )
    return sorted(rows, key=lambda row: row["client_id"])


@torch.no_grad()
def evaluate_globally(task: Task, hooks, state: State) -> dict:
    """The server's model on all test images: the row of client NOBODY in evaluation.parquet.

    Where the method has no such model, every participating client's own on all of them, counted
    together (SGPT's protocol).

    Raises:
        FedLoomError: a prediction that is not finite.
    """
    images = np.sort(np.concatenate(task.data.test))
    scored = _scored(task, hooks, *_sent(task, hooks, state, [NOBODY]), [images])
    models = 1
    if scored is None:
        ids, width = task.data.participating, EVALUATED_AT_ONCE if task.stacked else 1
        models, scored = len(ids), ([], [])
        for start in range(0, len(ids), width):
            received, clients = _sent(task, hooks, state, ids[start : start + width])
            correct, loss = _scored(task, hooks, received, clients, [images] * len(clients))
            scored = scored[0] + correct, scored[1] + loss
    correct, loss = map(sum, scored)
    return {
        "round": task.round,
        "client_id": NOBODY,
        "domain": "",
        "participating": False,
        "num_test": models * len(images),
        "num_correct": correct,
        "loss": loss / (models * len(images)),
    }


def _scored(
    task: Task, hooks, received: Tree, clients: Cohort, images: list[np.ndarray]
) -> tuple[list[int], list[float]] | None:
    """Correct answers and summed loss of each client on its rows of `images`.

    None where the method has no server's model, which is this cohort.

    Raises:
        FedLoomError: a prediction that is missing or not finite.
    """
    correct, loss = torch.zeros(len(images)), torch.zeros(len(images))
    for batch in slices(task, images):
        logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
        if logits is None and clients.nobody:
            return None
        if logits is None:
            raise FedLoomError(
                f"{task.method}: predict gave None for clients {clients.ids}; only the server's "
                "model (clients.nobody) may be missing"
            )
        finite = logits.isfinite().all(-1).all(-1)
        if not finite.all():
            client = clients.ids[int(finite.int().argmin())]
            who = "the server's model" if client == NOBODY else f"client {client}"
            raise FedLoomError(
                f"round {task.round}, {who}: predictions are not finite; lower training.lr or set "
                "training.clip"
            )
        hits = (logits.argmax(-1) == batch.labels) & batch.mask
        losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        correct += hits.sum(1).cpu()
        loss += losses.view_as(batch.mask).where(batch.mask, 0).sum(1).cpu()
    return correct.int().tolist(), loss.tolist()
