"""Evaluation after a round: every client on its own test images, and the server's model on all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from fedloom.common.ids import SERVER_MODEL
from fedloom.common.tensors import Tree, stack, tensor_map
from fedloom.data.federation import Batch
from fedloom.federated import checks
from fedloom.federated.confusion import Confusion
from fedloom.federated.evaluation_batches import iterate_examples
from fedloom.federated.groups import (
    clients_at_once,
    clients_evaluated_at_once,
    groups,
    groups_by_images,
    images_at_once,
)
from fedloom.federated.round import download_to, personal_state
from fedloom.federated.shared_model import SharedModel, WatchedCohort
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task, cohort
from fedloom.hooks.hook_caller import Hooks


@dataclass
class Scores:
    """How K clients answered their images.

    Attributes:
        correct: number of correct answers [K].
        loss: sum of the losses [K].
        answers: the predicted class of every image of each client, K arrays.
        noticed: the fields of the cohort that `predict` read.
    """

    correct: list[int]
    loss: list[float]
    answers: list[np.ndarray]
    noticed: set[str]


def _evaluated_state(task: Task, hooks: Hooks, state: State, client: int, received: Tree) -> Tree:
    """Return the personal state with which a client is evaluated, before it is personalised."""
    if client in state.clients:
        return state.clients[client]
    unseen = hooks.unseen_client_state(
        task=task, client=client, states=state.personal, received=received
    )
    if unseen is None:
        return personal_state(task, hooks, state, client)
    checks.check_personal(task, "unseen_client_state", client, unseen)
    return unseen


def received_by(task: Task, hooks: Hooks, state: State, ids: list[int]) -> tuple[Tree, Cohort]:
    """Return what the clients receive after the round, stacked [K, ...], and the clients."""
    received = download_to(task, hooks, state, ids)[1]
    pairs = zip(ids, received, strict=True)
    states = {k: _evaluated_state(task, hooks, state, k, tree) for k, tree in pairs}
    checks.check_stackable(task, "unseen_client_state", states, state.clients)
    return stack(received), cohort(task, ids, list(states.values()))


def _personalized(task: Task, hooks: Hooks, received: Tree, clients: Cohort) -> Cohort | None:
    """Return the clients with the states that `personalize` gives, or None if the method has none.

    It may train, and is asked for as many clients at once as train as one batch.

    Raises:
        FedLoomError: personalize raises, or returns what it may not.
    """
    trees = []
    single = (tensor_map(lambda value: value[0], tree) for tree in (received, clients.state))
    for part in groups(len(clients), clients_at_once(task, *single)):
        some = clients if len(part) == len(clients) else clients.subset(part)
        given = tensor_map(lambda value: value[part.start : part.stop], received)  # noqa: B023
        with torch.enable_grad():
            states = hooks.personalize(task=task, received=given, clients=some)
        if states is None:
            return None
        checks.check_personalized(task, some, states)
        trees.append(tensor_map(torch.Tensor.detach, states))
    return replace(clients, state=tensor_map(lambda *parts: torch.cat(parts), *trees))


def _width(task: Task, state: State) -> int:
    """Return how many clients are evaluated as one batch."""
    sent = {key: state.server.get(key, {}) for key in ("params", "constants")}
    kept = next(iter(state.clients.values()), {})
    return clients_evaluated_at_once(task, sent, kept)


def cohorts(
    task: Task, hooks: Hooks, state: State, ids: Sequence[int] | None = None
) -> Iterator[tuple[Tree, Cohort]]:
    """Yield clients in cohorts of about equally many test images.

    Args:
        ids: of these clients; default: of all, participating or not.
    """
    ids = range(task.data.num_clients) if ids is None else ids
    by_size = sorted(ids, key=lambda k: (len(task.data.test[k]), k))
    sizes = [len(task.data.test[k]) for k in by_size]
    for part in groups_by_images(sizes, _width(task, state), images_at_once(task)):
        yield received_by(task, hooks, state, sorted(by_size[k] for k in part))


@torch.no_grad()
def artefact(task: Task, hooks: Hooks, state: State, name: str) -> dict[str, list]:
    """Compute a method's own table for figures, by column.

    Raises:
        FedLoomError: the method gives no such table, or what is none.
    """

    def batches() -> Iterator[tuple[Tree, Cohort, Batch]]:
        for received, clients in cohorts(task, hooks, state):
            for batch in iterate_examples(task, [task.data.test[k] for k in clients.ids]):
                yield received, clients, batch

    table = hooks.artefact(task=task, server=state.server, cohorts=batches(), name=name)
    checks.check_artefact(task, name, table)
    return table


@torch.no_grad()
def evaluate_clients(
    task: Task,
    hooks: Hooks,
    state: State,
    confusion: Confusion | None = None,
    ids: Sequence[int] | None = None,
    shared: SharedModel | None = None,
) -> list[dict]:
    """Evaluate clients on their own test images: rows of evaluation.parquet, by client id.

    A method that personalises has two rows per client, without and with it.

    Args:
        shared: where the answers without `personalize` are kept, for `evaluate_globally`.
        confusion: where answers are counted by class and predicted class, if anywhere; those of
            personalised clients, if the method has them.
        ids: of the clients; default: all.

    Raises:
        FedLoomError: a hook raises, or returns what it may not.
    """
    rows = []
    for received, clients in cohorts(task, hooks, state, ids):
        images = [task.data.test[k] for k in clients.ids]
        # scored before the hook is asked, which may write to the states that it gets
        own = _scores_of_clients(task, hooks, received, clients, images)
        scores = [(False, own)]
        if shared is not None:
            answered = (images, own.correct, own.loss, own.answers)
            shared.add(received, clients, own.noticed, *answered)
        personal = _personalized(task, hooks, received, clients)
        if personal is not None:
            scores.append((True, _scores_of_clients(task, hooks, received, personal, images)))
        for personalized, scored in scores:
            for k, client in enumerate(clients.ids):
                if confusion is not None and personalized is scores[-1][0]:
                    confusion.add(task, client, images[k], scored.answers[k])
                rows.append(
                    {
                        "round": task.round,
                        "client_id": client,
                        "domain": task.data.domains[client],
                        "participating": client in task.data.position,
                        "personalized": personalized,
                        "num_test": len(images[k]),
                        "num_correct": scored.correct[k],
                        "loss": scored.loss[k] / len(images[k]),
                    }
                )
    return sorted(rows, key=lambda row: (row["client_id"], row["personalized"]))


@torch.no_grad()
def evaluate_globally(
    task: Task,
    hooks: Hooks,
    state: State,
    confusion: Confusion | None = None,
    ids: Sequence[int] | None = None,
    shared: SharedModel | None = None,
) -> dict:
    """Evaluate the server's model on all test images: a row of client SERVER_MODEL.

    Where the method has no such model, every participating client's own model is evaluated on all
    of them, and the answers are counted together (SGPT's protocol).

    Args:
        confusion: where answers are counted by class and predicted class, if anywhere.
        ids: of the clients that answer in the server's stead, if they participate; default: all.
        shared: what `evaluate_clients` filled in after this round. The images are not passed
            through the server's model again if all clients have answered with it.

    Raises:
        FedLoomError: a hook raises, or returns what it may not.
    """
    images = np.sort(np.concatenate(task.data.test))
    received, server_model = received_by(task, hooks, state, [SERVER_MODEL])
    if shared is not None and shared.answered(received, server_model, images):
        models, correct, loss = 1, shared.correct, shared.loss
        asked, answers = shared.images, shared.answers
    else:
        scored = _score(task, hooks, received, server_model, [images])
        parts = _scores_of_each(task, hooks, state, images, ids) if scored is None else [scored]
        correct = sum(hits for part in parts for hits in part.correct)
        loss = sum(value for part in parts for value in part.loss)
        answers = [row for part in parts for row in part.answers]
        models, asked = len(answers), [images] * len(answers)
    if confusion is not None:
        confusion.add(task, SERVER_MODEL, np.concatenate(asked), np.concatenate(answers))
    return {
        "round": task.round,
        "client_id": SERVER_MODEL,
        "domain": "",
        "participating": False,
        "personalized": False,
        "num_test": models * len(images),
        "num_correct": correct,
        "loss": loss / (models * len(images)),
    }


def _scores_of_each(
    task: Task, hooks: Hooks, state: State, images: np.ndarray, ids: Sequence[int] | None
) -> list[Scores]:
    """Return the scores of every participating client's own model on the same images.

    Args:
        ids: of these clients alone; None: of all.
    """
    wanted = task.data.participating if ids is None else ids
    chosen, parts = [k for k in wanted if k in task.data.position], []
    for group in groups(len(chosen), _width(task, state)):
        received, clients = received_by(task, hooks, state, [chosen[k] for k in group])
        rows = [images] * len(clients)
        parts.append(_scores_of_clients(task, hooks, received, clients, rows))
    return parts


def _scores_of_clients(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, images: list[np.ndarray]
) -> Scores:
    """Return `_score` of clients, who always have a model."""
    scores = _score(task, hooks, received, clients, images)
    assert scores is not None, "None stands for a missing model of the server"
    return scores


def _score(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, images: list[np.ndarray]
) -> Scores | None:
    """Count correct answers and sum the loss of each client on its rows of `images`.

    Returns:
        None if the cohort is the server's model and the method has none.

    Raises:
        FedLoomError: a prediction that is missing, of another shape or not finite.
    """
    answers, watched = [], WatchedCohort.of(clients)
    correct, loss, bad = torch.zeros(3, len(images), device=task.data.device)  # [K] each
    for batch in iterate_examples(task, images):
        logits = hooks.predict(task=task, received=received, clients=watched, batch=batch)
        if logits is None and clients.is_server_model:
            return None
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
    own = [row[: len(mine)] for row, mine in zip(predicted, images, strict=True)]
    return Scores([int(hits) for hits in correct], loss, own, watched.noticed)
