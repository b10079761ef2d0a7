"""Evaluate the clients on their own test images, and the server's model on all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.tensors import Tree, leaves, stack, tensor_map
from fedloom.data.federation import Batch, Federation
from fedloom.federated import attacks, checks
from fedloom.federated.groups import (
    clients_at_once,
    clients_evaluated_at_once,
    groups,
    groups_by_images,
    images_at_once,
    iterate_examples,
)
from fedloom.federated.round import download_to, personal_state
from fedloom.federated.rows import Confusion
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task, cohort
from fedloom.hooks.hook_caller import Hooks


@dataclass(frozen=True)
class Score:
    """How a client, or the server's model, answered its images.

    Attributes:
        images, predicted: rows of the image store [n], and the class predicted for each.
        correct: number of correct answers.
        loss: sum of the cross-entropies.
    """

    images: np.ndarray
    predicted: np.ndarray
    correct: int
    loss: float


@torch.no_grad()
def evaluate(
    task: Task,
    hooks: Hooks,
    state: State,
    ids: Sequence[int] | None = None,
    *,
    global_test: bool = False,
    confusion: Confusion | None = None,
) -> list[dict]:
    """Return the rows of evaluation.parquet of round `task.round`.

    They are sorted by client id; a method that personalises has two rows per client, without and
    with it. The row of the global test comes last.

    Args:
        ids: the clients to evaluate; default: all, whether they participate or not.
        global_test: also evaluate the server's model on all test images.
        confusion: counts the answers, of a method that personalises those of personalised clients.
    """
    rows, answers = list[dict](), list[list[Score]]()
    server = received_by(task, hooks, state, [SERVER_MODEL]) if global_test else None
    everyone = ids is None or len(ids) == task.data.num_clients
    triggered = attacks.triggered(task, hooks)
    # clients that a method cannot tell apart have given the answers of the server's model
    one_model = global_test and everyone and not hooks.takes("predict", "clients")
    for received, clients in cohorts(task, hooks, state, ids):
        images = [task.data.test[k] for k in clients.ids]
        # scored before `personalize`, which may write to the states that it gets
        scores = score_of(task, hooks, received, clients, images)
        answers.append(scores)
        rates = _backdoor_rates(task, hooks, received, clients, triggered)
        rows += _client_rows(task, clients, scores, rates, personalized=False)
        one_model = one_model and server is not None and is_copied(server[0], received)
        personal = personalized_by(task, hooks, received, clients)
        if personal is not None:
            scores = score_of(task, hooks, received, personal, images)
            rates = _backdoor_rates(task, hooks, received, personal, triggered)
            rows += _client_rows(task, clients, scores, rates, personalized=True)
        if confusion is not None:
            for client, score in zip(clients.ids, scores, strict=True):
                confusion.add(task, client, score.images, score.predicted)
    rows.sort(key=lambda row: (row["client_id"], row["personalized"]))
    if server is not None:
        answers = answers if one_model else _answers_to_all(task, hooks, state, ids, *server)
        rows.append(row_of(task, SERVER_MODEL, answers))
        if confusion is not None:
            scores = [score for of_cohort in answers for score in of_cohort]
            predicted = np.concatenate([score.predicted for score in scores])
            images = np.concatenate([score.images for score in scores])
            confusion.add(task, SERVER_MODEL, images, predicted)
    return rows


def evaluate_globally(task: Task, hooks: Hooks, state: State) -> dict:
    """Return the row of the global test alone."""
    return evaluate(task, hooks, state, [], global_test=True)[-1]


def _answers_to_all(
    task: Task,
    hooks: Hooks,
    state: State,
    ids: Sequence[int] | None,
    received: Tree,
    server_model: Cohort,
) -> list[list[Score]]:
    """Return how the server's model answers all test images.

    If the method has no such model, the participating clients' models (of `ids`, if given) answer
    all of them instead (SGPT's protocol).
    """
    images = np.sort(np.concatenate(task.data.test))
    scores = score_of(task, hooks, received, server_model, [images])
    if not scores:
        chosen = [k for k in ids or task.data.participating if k in task.data.position]
        for group in groups(len(chosen), width(task, state)):
            received, clients = received_by(task, hooks, state, [chosen[k] for k in group])
            scores += score_of(task, hooks, received, clients, [images] * len(clients))
    return [scores]


def _client_rows(
    task: Task, clients: Cohort, scores: list[Score], rates: dict[int, float], personalized: bool
) -> list[dict]:
    """Return the clients' rows of evaluation.parquet; `rates` are of `_backdoor_rates`."""
    rows = []
    for client, score in zip(clients.ids, scores, strict=True):
        row = row_of(task, client, [[score]], personalized)
        rows.append(row | ({"backdoor_rate": rates[client]} if client in rates else {}))
    return rows


def _backdoor_rates(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, triggered: Federation | None
) -> dict[int, float]:
    """Return the share of its triggered images that each client takes for the wanted class."""
    if triggered is None:
        return {}
    chosen = [k for k, client in enumerate(clients.ids) if len(triggered.test[client])]
    if not chosen:
        return {}
    images = [triggered.test[clients.ids[k]] for k in chosen]
    sent, members = tensor_map(lambda value: value[chosen], received), clients.subset(chosen)
    scores = score_of(replace(task, data=triggered), hooks, sent, members, images)
    pairs = zip(members.ids, scores, strict=True)
    return {client: score.correct / len(score.images) for client, score in pairs}


def row_of(
    task: Task, client: int, answers: list[list[Score]], personalized: bool = False
) -> dict[str, Any]:
    """Return a row of evaluation.parquet from the answers of a client, or by cohort of several."""
    scores = [score for of_cohort in answers for score in of_cohort]
    images = sum(len(score.images) for score in scores)
    return {
        "round": task.round,
        "client_id": client,
        "domain": "" if client == SERVER_MODEL else task.data.domains[client],
        "participating": client in task.data.position,
        "personalized": personalized,
        "num_test": images,
        "num_correct": sum(score.correct for score in scores),
        "loss": sum(sum(score.loss for score in of_cohort) for of_cohort in answers) / images,
    }


@torch.no_grad()
def artefact(task: Task, hooks: Hooks, state: State, name: str) -> dict[str, list]:
    """Compute a table of a wrapper, or else of the method, for figures and tables, by column."""

    def batches() -> Iterator[tuple[Tree, Cohort, Batch]]:
        for received, clients in cohorts(task, hooks, state):
            for batch in iterate_examples(task, [task.data.test[k] for k in clients.ids]):
                yield received, clients, batch

    def answers(images: Sequence[np.ndarray]) -> Iterator[tuple[Cohort, Batch, Tensor]]:
        for received, clients in cohorts(task, hooks, state):
            for batch in iterate_examples(task, [images[k] for k in clients.ids]):
                logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
                yield clients, batch, checks.check_logits(task, clients, batch.labels, logits)

    hook, table = "audit_table", hooks.audit_table(task=task, answers=answers, name=name)
    if table is None:
        hook = "artefact"
        table = hooks.artefact(task=task, server=state.server, cohorts=batches(), name=name)
    checks.check_artefact(task, hook, name, table)
    return table


def cohorts(
    task: Task, hooks: Hooks, state: State, ids: Sequence[int] | None = None
) -> Iterator[tuple[Tree, Cohort]]:
    """Yield what clients (default: all) receive, and the clients, in cohorts of similar size."""
    ids = range(task.data.num_clients) if ids is None else ids
    by_size = sorted(ids, key=lambda k: (len(task.data.test[k]), k))
    sizes = [len(task.data.test[k]) for k in by_size]
    for group in groups_by_images(sizes, width(task, state), images_at_once(task)):
        yield received_by(task, hooks, state, sorted(by_size[k] for k in group))


def width(task: Task, state: State) -> int:
    """Return how many clients are evaluated as one batch."""
    sent = {key: state.server.get(key, {}) for key in ("params", "constants")}
    kept = next(iter(state.clients.values()), {})
    return clients_evaluated_at_once(task, sent, kept)


def received_by(task: Task, hooks: Hooks, state: State, ids: list[int]) -> tuple[Tree, Cohort]:
    """Return what the clients receive after the round, stacked [K, ...], and the clients."""
    received = download_to(task, hooks, state, ids)[1]
    pairs = zip(ids, received, strict=True)
    states = {k: _state_to_evaluate(task, hooks, state, k, tree) for k, tree in pairs}
    checks.check_stackable(task, "unseen_client_state", states, state.clients)
    return stack(received), cohort(task, ids, list(states.values()))


def _state_to_evaluate(task: Task, hooks: Hooks, state: State, client: int, received: Tree) -> Tree:
    """Return the personal state with which a client is evaluated, before it is personalised."""
    if client in state.personal:
        return state.personal[client]
    unseen = hooks.unseen_client_state(
        task=task, client=client, states=state.personal, received=received
    )
    if unseen is None:
        return personal_state(task, hooks, state, client)
    checks.check_personal(task, "unseen_client_state", client, unseen)
    return unseen


def is_copied(server: Tree, received: Tree) -> bool:
    """Return True if all K clients received [K, ...] the same as the server's model [1, ...]."""

    def equal(one: object, several: object) -> bool:
        if not isinstance(one, Tensor) or not isinstance(several, Tensor):
            return type(one) is type(several) and one == several
        if one.dtype != several.dtype or one.shape[1:] != several.shape[1:]:
            return False
        expanded = one.data_ptr() == several.data_ptr() and several.stride(0) == 0  # not copied
        return expanded or torch.equal(several, one.expand_as(several))

    of_server, of_clients = dict(leaves(server)), dict(leaves(received))
    return of_server.keys() == of_clients.keys() and all(
        equal(value, of_clients[path]) for path, value in of_server.items()
    )


def personalized_by(task: Task, hooks: Hooks, received: Tree, clients: Cohort) -> Cohort | None:
    """Return the clients with the states that `personalize` gives; None if the method has none.

    The hook may train, so that it gets at most as many clients at once as train as one batch.
    """
    trees = []
    first = (tensor_map(lambda value: value[0], tree) for tree in (received, clients.state))
    for group in groups(len(clients), clients_at_once(task, *first)):
        members = clients if len(group) == len(clients) else clients.subset(group)
        sent = tensor_map(lambda value: value[group.start : group.stop], received)  # noqa: B023
        with torch.enable_grad():
            states = hooks.personalize(task=task, received=sent, clients=members)
        if states is None:
            return None
        checks.check_personalized(task, members, states)
        trees.append(tensor_map(torch.Tensor.detach, states))
    return replace(clients, state=tensor_map(lambda *values: torch.cat(values), *trees))


def score_of(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, images: list[np.ndarray]
) -> list[Score]:
    """Let K clients predict the classes of their images.

    Returns:
        A score per client; none if the cohort is the server's model and the method has none.
    """
    answers = []
    correct, loss, bad = torch.zeros(3, len(images), device=task.data.device)  # [K] each
    for batch in iterate_examples(task, images):
        logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
        if logits is None and clients.is_server_model:
            return []
        logits = checks.check_logits(task, clients, batch.labels, logits)
        bad += ~logits.isfinite().all(-1).all(-1)
        answers.append(logits.argmax(-1))
        hits = (answers[-1] == batch.labels) & batch.mask
        losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        correct += hits.sum(1)
        loss += losses.view_as(batch.mask).where(batch.mask, 0).sum(1)
    correct, loss, bad = torch.stack([correct, loss, bad]).tolist()  # the one wait for the device
    checks.check_scores(task, clients, bad, loss)
    predicted = torch.cat(answers, 1).cpu().numpy()
    return [
        Score(rows, predicted[k, : len(rows)], int(correct[k]), loss[k])
        for k, rows in enumerate(images)
    ]
