"""Evaluate the clients on their own test images, and the server's model on all test images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.common.ids import SERVER_MODEL, STREAM_PART_PREFIX
from fedloom.common.trees import Tree, tensor_map
from fedloom.data.batch import Batch
from fedloom.data.federation import Federation
from fedloom.federated import check_results, groups
from fedloom.federated.answer_counts import AnswerCounts, Score
from fedloom.federated.check_trees import require_finite
from fedloom.federated.cohorts import (
    all_answer_the_same,
    evaluation_cohorts,
    personalize_cohort,
    prepare_clients,
)
from fedloom.federated.round import attacking_clients
from fedloom.federated.rows import EvaluationRow
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task
from fedloom.hooks.run_hooks import Hooks


@torch.no_grad()
def evaluate(
    task: Task,
    hooks: Hooks,
    state: State,
    ids: Sequence[int] | None = None,
    *,
    global_test: bool = False,
    counts: AnswerCounts | None = None,
) -> list[EvaluationRow]:
    """Return the rows of evaluation.parquet for round `task.round`, sorted by client id.

    1. Each client has a row. With a method that personalises, each client has two rows: without and
       with personalisation.
    2. With `global_test`, the last row is the server's model on all test images.

    Args:
        state: the run's state after the round.
        ids: the clients to evaluate. Default: all clients that have test images, also those that do
            not participate.
        counts: counts the answers. With a method that personalises, it counts the personalised
            answers of clients.
    """
    server_model: tuple[Tree, Cohort] | None = None
    if global_test:
        server_model = prepare_clients(task, hooks, state, [SERVER_MODEL])
    triggered = hooks.triggered(task=task)
    if triggered is not None:
        check_results.check_federation(task, "triggered", triggered)

    # All clients' answers are those of the server's model if `predict` cannot tell clients apart,
    # no wrapper adds to their logits, and all of them received that model.
    everyone = ids is None or len(ids) == len(task.data.tested)
    is_one_model = everyone and not hooks.takes("predict", "clients")

    # evaluate the clients, cohort by cohort
    rows: list[EvaluationRow] = []
    scores_by_cohort: list[list[Score]] = []
    for received, clients in evaluation_cohorts(task, hooks, state, ids):
        if is_one_model and server_model is not None:
            is_one_model = all_answer_the_same(server_model[0], received, clients)
        result = _evaluate_cohort(task, hooks, received, clients, triggered)
        rows += result.rows
        scores_by_cohort.append(result.scores)
        if counts is not None:
            for client, score in zip(clients.ids, result.final_scores, strict=True):
                counts.add(task, client, [score])
    rows.sort(key=lambda row: (row.client_id, row.personalized))
    if server_model is None:
        return rows

    # the global test comes last
    if not is_one_model:
        scores_by_cohort = [_scores_on_all_images(task, hooks, state, ids, server_model)]
    rows.append(evaluation_row(task, SERVER_MODEL, scores_by_cohort))
    if counts is not None:
        counts.add(task, SERVER_MODEL, list(chain.from_iterable(scores_by_cohort)))
    return rows


@dataclass(frozen=True)
class _CohortResult:
    """How K clients answered their own test images.

    Attributes:
        rows: their rows of evaluation.parquet: K rows, or 2 K if the method personalises.
        scores: the scores without personalisation [K].
        final_scores: the scores with personalisation [K], if the method personalises; else
            `scores`.
    """

    rows: list[EvaluationRow]
    scores: list[Score]
    final_scores: list[Score]


def _evaluate_cohort(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, triggered: Federation | None
) -> _CohortResult:
    """Evaluate K clients on their own test images, without and with personalisation."""
    # predict before `personalize` is called, because that may change the states in place
    scores, rows = _score_clients(task, hooks, received, clients, triggered, False)

    # evaluate the same clients with the states of `personalize`
    personal = personalize_cohort(task, hooks, received, clients)
    if personal is None:
        return _CohortResult(rows, scores, scores)
    final_scores, personal_rows = _score_clients(task, hooks, received, personal, triggered, True)
    return _CohortResult(rows + personal_rows, scores, final_scores)


def _score_clients(
    task: Task,
    hooks: Hooks,
    received: Tree,
    clients: Cohort,
    triggered: Federation | None,
    personalized: bool,
) -> tuple[list[Score], list[EvaluationRow]]:
    """Return the scores of K clients on their own test images, and their rows."""
    # the scores on plain images, and also on images with a trigger if there is an attack
    images = [task.data.test[client] for client in clients.ids]
    scores = scores_on(task, hooks, received, clients, images)
    backdoor_rates: dict[int, float] = {}
    if triggered is not None:
        backdoor_rates = _backdoor_rates(task, hooks, received, clients, triggered)

    rows: list[EvaluationRow] = []
    for client, score in zip(clients.ids, scores, strict=True):
        row = evaluation_row(task, client, [[score]], personalized)
        if client in backdoor_rates:
            metrics = dict(row.metrics)
            metrics["backdoor_rate"] = backdoor_rates[client]
            row = replace(row, metrics=metrics)
        rows.append(row)
    return scores, rows


def evaluate_globally(task: Task, hooks: Hooks, state: State) -> EvaluationRow:
    """Return only the row of the global test."""
    return evaluate(task, hooks, state, [], global_test=True)[-1]


def _scores_on_all_images(
    task: Task,
    hooks: Hooks,
    state: State,
    ids: Sequence[int] | None,
    server_model: tuple[Tree, Cohort],
) -> list[Score]:
    """Return the score of the server's model on all test images.

    If the method has no such model, return the scores of clients' models on all test images instead
    (SGPT's protocol). These are the participating clients, or the participating ones in `ids`. No
    wrapper adds to their logits, since the images are everyone's.
    """
    images = np.sort(np.concatenate(task.data.test))
    scores = scores_on(task, hooks, *server_model, [images])
    if scores:
        return scores

    # the server has no model: the participating clients answer in its place
    chosen = [k for k in ids or task.data.participating if k in task.data.position]
    at_once = groups.clients_evaluated_at_once(task, state)
    for group in groups.equal_groups(len(chosen), at_once):
        received, clients = prepare_clients(task, hooks, state, [chosen[k] for k in group])
        clients = replace(clients, logit_offsets=None)
        scores += scores_on(task, hooks, received, clients, [images] * len(clients))
    return scores


def _backdoor_rates(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, triggered: Federation
) -> dict[int, float]:
    """Return, by client, the share of its triggered images that it takes for the wanted class.

    Clients without such images are left out.
    """
    # leave out clients that have no images with a trigger
    chosen = [k for k, client in enumerate(clients.ids) if len(triggered.test[client])]
    if not chosen:
        return {}
    sent = tensor_map(lambda value: value[chosen], received)
    members = clients.subset(chosen)

    # all labels in `triggered` are the wanted class, so correct answers are the attack's successes
    images = [triggered.test[client] for client in members.ids]
    scores = scores_on(replace(task, data=triggered), hooks, sent, members, images)
    return {
        client: score.correct / len(score.images)
        for client, score in zip(members.ids, scores, strict=True)
    }


def scores_on(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, images: list[np.ndarray]
) -> list[Score]:
    """Return the score of each of K clients on its images (rows of the image store).

    Return [] for the server's model if the method has none.

    Raises:
        FedLoomError: the logits have a wrong shape or type, or their loss is NaN or infinite.
    """
    predictions: list[Tensor] = []
    confidences: list[Tensor] = []
    correct, loss = torch.zeros(2, len(images), device=task.data.device)  # [K] each

    # sum over the batches on the device
    for batch in groups.iterate_examples(task, images):
        # a method may have no server's model
        logits = answer(task, hooks, received, clients, batch)
        if logits is None:
            return []
        predictions.append(logits.argmax(-1))
        confidences.append(logits.float().softmax(-1).amax(-1))

        # count hits and losses, without the images that only fill up the batch
        hits = (predictions[-1] == batch.labels) & batch.mask
        losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        correct += hits.sum(1)
        loss += losses.view_as(batch.mask).where(batch.mask, 0).sum(1)

    # fetch the sums, which is the only wait for the device, and check them
    correct, loss = torch.stack([correct, loss]).tolist()
    for client, value in zip(clients.ids, loss, strict=True):
        call = check_results.describe_hook_call(task, "predict", client)
        require_finite([(f"{call}: the loss of its predictions", value)])

    # each client's answers, without those to images that only fill up the batch
    predicted = torch.cat(predictions, 1).cpu().numpy()
    confidence = torch.cat(confidences, 1).cpu().numpy()
    scores: list[Score] = []
    for k, rows in enumerate(images):
        own = slice(len(rows))
        scores.append(Score(rows, predicted[k, own], confidence[k, own], int(correct[k]), loss[k]))
    return scores


def answer(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, batch: Batch
) -> Tensor | None:
    """Return the logits [K, B, C] with which K clients answer a batch, with wrappers' offsets.

    Return None for the server's model if the method has none.

    Raises:
        FedLoomError: the logits have a wrong shape or type.
    """
    logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
    if logits is None and clients.is_server_model:
        return None
    logits = check_results.check_logits(task, clients, batch.labels, logits)
    return _with_offsets(clients, logits)


def _with_offsets(clients: Cohort, logits: Tensor) -> Tensor:
    """Return the logits [K, B, C] of the clients' answers plus what wrappers add to them."""
    if clients.logit_offsets is None:
        return logits
    return logits + clients.logit_offsets[:, None]


def evaluation_row(
    task: Task, client: int, scores_by_cohort: list[list[Score]], personalized: bool = False
) -> EvaluationRow:
    """Return a row of evaluation.parquet.

    Args:
        client: the client's id, or SERVER_MODEL.
        scores_by_cohort: the scores of each cohort's clients. For a single client it is
            `[[score]]`.
        personalized: whether the client answered with the state of `personalize`.
    """
    scores = list(chain.from_iterable(scores_by_cohort))
    images = sum(len(score.images) for score in scores)

    # sum cohort by cohort, since the last bits depend on the order of summation
    losses_of_cohorts: list[float] = []
    for cohort_scores in scores_by_cohort:
        losses_of_cohorts.append(sum(score.loss for score in cohort_scores))

    domain = ""
    if client != SERVER_MODEL:
        domain = task.data.domains[client]
    return EvaluationRow(
        round=task.round,
        client_id=client,
        domain=domain,
        participating=client in task.data.position,
        personalized=personalized,
        num_test=images,
        num_correct=sum(score.correct for score in scores),
        loss=sum(losses_of_cohorts) / images,
        metrics=_accuracy_by_part(task, scores),
    )


def _accuracy_by_part(task: Task, scores: list[Score]) -> dict[str, float]:
    """Return the accuracy on each part of a stream that has arrived, as metrics.

    Parts are numbered from 1. Without a stream there are no such metrics.
    """
    if task.data.rounds is None:
        return {}
    images = np.concatenate([score.images for score in scores])
    predicted = np.concatenate([score.predicted for score in scores])
    correct = predicted == task.data.labels.cpu().numpy()[images]

    # the number of the part of each image, in the order of arrival
    arrives = task.data.rounds.arrives
    part_of_image = np.unique(arrives, return_inverse=True)[1]  # [N], from 0
    parts = part_of_image[images]
    return {
        f"{STREAM_PART_PREFIX}{part + 1}": float(correct[parts == part].mean())
        for part in np.unique(parts)
    }


@torch.no_grad()
def compute_artefact(task: Task, hooks: Hooks, state: State, name: str) -> dict[str, list]:
    """Compute the table `name` of a wrapper, or else of the method, as a dict of columns.

    Clients that attack have no part in it, as in evaluations.
    """
    attacking = attacking_clients(task, hooks)
    honest = [client for client in task.data.tested if client not in attacking]

    def batches(images: Sequence[np.ndarray]) -> Iterator[tuple[Tree, Cohort, Batch]]:
        """Yield (received, clients, batch) over the given images of every client.

        `images` has the rows of each client's images, by client id.
        """
        for received, clients in evaluation_cohorts(task, hooks, state, honest):
            for batch in groups.iterate_examples(task, [images[k] for k in clients.ids]):
                yield received, clients, batch

    def answers(images: Sequence[np.ndarray]) -> Iterator[tuple[Cohort, Batch, Tensor]]:
        """Yield (clients, batch, logits [K, B, C]) over the same batches."""
        for received, clients, batch in batches(images):
            logits = answer(task, hooks, received, clients, batch)
            assert logits is not None, "only the server's model may be missing"
            yield clients, batch, logits

    # ask the wrappers for the table, and then the method
    hook = "audit_table"
    table = hooks.audit_table(task=task, answers=answers, name=name)
    if table is None:
        hook = "artefact"
        own_batches = batches(task.data.test)
        table = hooks.artefact(task=task, server=state.server, cohorts=own_batches, name=name)
    check_results.check_artefact(task, hook, name, table)
    return table
