"""Evaluate the clients on their own test images, and the server's model on all test images."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.common.ids import BASE_CLASSES, OWN_IMAGES, SERVER_MODEL, STREAM_PART_PREFIX
from fedloom.common.trees import Tree, leaves, stack, tensor_map
from fedloom.data.batch import Batch
from fedloom.data.federation import Federation
from fedloom.federated import check_results, groups
from fedloom.federated.check_trees import require_finite
from fedloom.federated.round import attacking_clients, download_to, personal_state
from fedloom.federated.rows import Confusion, EvaluationRow, Score, TestSetRow
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task, cohort
from fedloom.hooks.run_hooks import Hooks


@torch.no_grad()
def evaluate(
    task: Task,
    hooks: Hooks,
    state: State,
    ids: Sequence[int] | None = None,
    *,
    global_test: bool = False,
    confusion: Confusion | None = None,
) -> list[EvaluationRow]:
    """Return the rows of evaluation.parquet for round `task.round`, sorted by client id.

    1. Each client has a row. With a method that personalises, each client has two rows: without and
       with personalisation.
    2. With `global_test`, the last row is the server's model on all test images.

    Args:
        state: the run's state after the round.
        ids: the clients to evaluate. Default: all clients that have test images, also those that do
            not participate.
        confusion: counts the answers. With a method that personalises, it counts the personalised
            answers of clients.
    """
    server: tuple[Tree, Cohort] | None = None
    if global_test:
        server = received_by(task, hooks, state, [SERVER_MODEL])
    triggered = hooks.triggered(task=task)
    if triggered is not None:
        check_results.check_federation(task, "triggered", triggered)

    # if `predict` cannot tell clients apart, their answers are those of the server's model
    everyone = ids is None or len(ids) == len(task.data.tested)
    one_model = everyone and not hooks.takes("predict", "clients")

    # evaluate the clients; `answers` has their scores without personalisation, by cohort
    rows: list[EvaluationRow] = []
    answers: list[list[Score]] = []
    for received, clients in evaluation_cohorts(task, hooks, state, ids):
        # predict before `personalize` is called, because that may change the states in place
        scores, new_rows = _score_clients(task, hooks, received, clients, triggered, False)
        answers.append(scores)
        rows += new_rows
        one_model = one_model and server is not None and is_copied(server[0], received)

        # evaluate the same clients with the states of `personalize`
        personal = personalized_by(task, hooks, received, clients)
        if personal is not None:
            scores, new_rows = _score_clients(task, hooks, received, personal, triggered, True)
            rows += new_rows

        if confusion is not None:
            for client, score in zip(clients.ids, scores, strict=True):
                confusion.add(task, client, [score])
    rows.sort(key=lambda row: (row.client_id, row.personalized))

    # the global test comes last
    if server is not None:
        if not one_model:
            answers = [_answers_to_all(task, hooks, state, ids, server)]
        rows.append(evaluation_row(task, SERVER_MODEL, answers))
        if confusion is not None:
            confusion.add(task, SERVER_MODEL, list(chain.from_iterable(answers)))
    return rows


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
    scores = score_of(task, hooks, received, clients, images)
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


def _answers_to_all(
    task: Task, hooks: Hooks, state: State, ids: Sequence[int] | None, server: tuple[Tree, Cohort]
) -> list[Score]:
    """Return the score of the server's model (`server`) on all test images.

    If the method has no such model, return the scores of clients' models on all test images instead
    (SGPT's protocol). These are the participating clients, or the participating ones in `ids`.
    """
    images = np.sort(np.concatenate(task.data.test))
    scores = score_of(task, hooks, *server, [images])
    if scores:
        return scores

    # the server has no model: the participating clients answer in its place
    chosen = [k for k in ids or task.data.participating if k in task.data.position]
    at_once = groups.clients_evaluated_at_once(task, state)
    for group in groups.equal_groups(len(chosen), at_once):
        received, clients = received_by(task, hooks, state, [chosen[k] for k in group])
        scores += score_of(task, hooks, received, clients, [images] * len(clients))
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
    scores = score_of(replace(task, data=triggered), hooks, sent, members, images)
    return {
        client: score.correct / len(score.images)
        for client, score in zip(members.ids, scores, strict=True)
    }


def evaluation_row(
    task: Task, client: int, answers: list[list[Score]], personalized: bool = False
) -> EvaluationRow:
    """Return a row of evaluation.parquet.

    Args:
        client: the client's id, or SERVER_MODEL.
        answers: for each cohort, the scores of its clients. For a single client it is `[[score]]`.
        personalized: whether the client answered with the state of `personalize`.
    """
    scores = list(chain.from_iterable(answers))
    images = sum(len(score.images) for score in scores)

    # sum cohort by cohort, since the last bits depend on the order of summation
    losses_of_cohorts: list[float] = []
    for cohort_scores in answers:
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
        metrics=_by_part(task, scores),
    )


def _by_part(task: Task, scores: list[Score]) -> dict[str, float]:
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
    """Compute the table `name` of a wrapper, or else of the method, as a dict of columns."""

    def batches(images: Sequence[np.ndarray]) -> Iterator[tuple[Tree, Cohort, Batch]]:
        """Yield (received, clients, batch) over the given images of every client.

        `images` has the rows of each client's images, by client id.
        """
        for received, clients in evaluation_cohorts(task, hooks, state):
            for batch in groups.iterate_examples(task, [images[k] for k in clients.ids]):
                yield received, clients, batch

    def answers(images: Sequence[np.ndarray]) -> Iterator[tuple[Cohort, Batch, Tensor]]:
        """Yield (clients, batch, logits [K, B, C]) over the same batches."""
        for received, clients, batch in batches(images):
            logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
            yield clients, batch, check_results.check_logits(task, clients, batch.labels, logits)

    # ask the wrappers for the table, and then the method
    hook = "audit_table"
    table = hooks.audit_table(task=task, answers=answers, name=name)
    if table is None:
        hook = "artefact"
        own_batches = batches(task.data.test)
        table = hooks.artefact(task=task, server=state.server, cohorts=own_batches, name=name)
    check_results.check_artefact(task, hook, name, table)
    return table


def evaluation_cohorts(
    task: Task, hooks: Hooks, state: State, ids: Sequence[int] | None = None
) -> Iterator[tuple[Tree, Cohort]]:
    """Yield (received, clients) for cohorts of clients with similar numbers of test images.

    `ids` are the clients. Default: all clients that have test images.
    """
    # sort by number of images: every client of a batch takes as much room as the largest one
    ids = task.data.tested if ids is None else ids
    by_size = sorted(ids, key=lambda k: (len(task.data.test[k]), k))
    sizes = [len(task.data.test[k]) for k in by_size]

    clients_at_once = groups.clients_evaluated_at_once(task, state)
    images_at_once = groups.images_at_once(task)
    for group in groups.groups_by_images(sizes, clients_at_once, images_at_once):
        yield received_by(task, hooks, state, sorted(by_size[k] for k in group))


def received_by(task: Task, hooks: Hooks, state: State, ids: list[int]) -> tuple[Tree, Cohort]:
    """Return (received, clients) for the clients `ids`, as they are evaluated after the round.

    `received` is what they get from the server, stacked [K, ...]. `clients` is their cohort, with
    the personal states that training made. A client that never trained has the state of
    `unseen_client_state`, or else of `init_client`.
    """
    _, received = download_to(task, hooks, state, ids)

    # a client that never trained gets the state of unseen_client_state, or else of init_client
    states: dict[int, Tree] = {}
    for client, tree in zip(ids, received, strict=True):
        own = state.personal.get(client)
        if own is None:
            own = hooks.unseen_client_state(
                task=task, client=client, states=state.personal, received=tree
            )
        if own is None:
            own = personal_state(task, hooks, state, client)
        states[client] = own

    check_results.check_states(task, "unseen_client_state", states, state.clients)
    return stack(received), cohort(task, ids, list(states.values()))


def is_copied(server: Tree, received: Tree) -> bool:
    """Return True if all K clients received [K, ...] the same as the server's model [1, ...]."""

    def equal(one: object, several: object) -> bool:
        """Return True if `several` [K, ...] is K copies of `one` [1, ...]."""
        if isinstance(one, Tensor) and isinstance(several, Tensor):
            same = one.dtype == several.dtype and one.shape[1:] == several.shape[1:]
            return same and torch.equal(several, one.expand_as(several))
        return type(one) is type(several) and one == several

    of_server = dict(leaves(server))
    of_clients = dict(leaves(received))
    if of_server.keys() != of_clients.keys():
        return False
    return all(equal(value, of_clients[path]) for path, value in of_server.items())


def personalized_by(task: Task, hooks: Hooks, received: Tree, clients: Cohort) -> Cohort | None:
    """Return the clients with the states of `personalize`; None if the hook returns None."""
    # split the cohort: `personalize` may train, which takes more memory than prediction
    received_by_first = tensor_map(lambda value: value[0], received)
    state_of_first = tensor_map(lambda value: value[0], clients.state)
    at_once = groups.clients_at_once(task, received_by_first, state_of_first)

    trees: list[Tree] = []
    for group in groups.equal_groups(len(clients), at_once):
        members = clients
        if len(group) != len(clients):
            members = clients.subset(group)
        sent = tensor_map(lambda value: value[group.start : group.stop], received)  # noqa: B023
        with torch.enable_grad():
            states = hooks.personalize(task=task, received=sent, clients=members)
        if states is None:
            return None
        check_results.check_personalized(task, members, states)
        trees.append(tensor_map(torch.Tensor.detach, states))

    return replace(clients, state=tensor_map(lambda *values: torch.cat(values), *trees))


def score_of(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, images: list[np.ndarray]
) -> list[Score]:
    """Return the score of each of K clients on its images (rows of the image store).

    Return [] for the server's model if the method has none.

    Raises:
        FedLoomError: the logits have a wrong shape or type, or their loss is NaN or infinite.
    """
    answers: list[Tensor] = []
    correct, loss = torch.zeros(2, len(images), device=task.data.device)  # [K] each

    # sum over the batches on the device
    for batch in groups.iterate_examples(task, images):
        # the model's logits; a method may have no server's model
        logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
        if logits is None and clients.is_server_model:
            return []
        logits = check_results.check_logits(task, clients, batch.labels, logits)
        answers.append(logits.argmax(-1))

        # count hits and losses, without the images that only fill up the batch
        hits = (answers[-1] == batch.labels) & batch.mask
        losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        correct += hits.sum(1)
        loss += losses.view_as(batch.mask).where(batch.mask, 0).sum(1)

    # fetch the sums, which is the only wait for the device, and check them
    correct, loss = torch.stack([correct, loss]).tolist()
    for client, value in zip(clients.ids, loss, strict=True):
        call = check_results.describe_hook_call(task, "predict", client)
        require_finite([(f"{call}: the loss of its predictions", value)])

    # each client's answers, without those to images that only fill up the batch
    predicted = torch.cat(answers, 1).cpu().numpy()
    return [
        Score(rows, predicted[k, : len(rows)], int(correct[k]), loss[k])
        for k, rows in enumerate(images)
    ]


@torch.no_grad()
def answer_test_sets(task: Task, hooks: Hooks, state: State) -> list[TestSetRow]:
    """Return the answers of clients on all test sets, a row for each client and set.

    These are the honest participating clients that have test images, without personalisation. There
    are three kinds of sets (`test_set`):

    1. `own`: the client's own test images.
    2. `base`: the test images of all clients.
    3. The sets of `task.data.unseen`, by their names: classes and datasets that no client trains
       on.
    """
    data = task.data

    # the test sets by name
    everything = np.sort(np.concatenate(data.test))
    base = replace(data, test=[everything] * data.num_clients)
    sets = {OWN_IMAGES: data, BASE_CLASSES: base, **data.unseen}

    # the honest clients, and the server's model, which may answer for all of them
    server = received_by(task, hooks, state, [SERVER_MODEL])
    attacking = attacking_clients(task, hooks)
    honest = [k for k in data.tested if k in data.position and k not in attacking]

    @cache
    def answers_of_server(name: str) -> list[Score]:
        return _scores_of_set(task, hooks, *server, sets[name])

    # no metrics for the parts of a stream: images of other datasets belong to no part
    described = replace(task, data=replace(data, rounds=None))

    # go through cohorts, each of as many clients as all sets allow
    rows: list[TestSetRow] = []
    tasks = [replace(task, data=tested) for tested in sets.values()]
    at_once = min(groups.clients_evaluated_at_once(each, state) for each in tasks)
    for start in range(0, len(honest), at_once):
        received, clients = received_by(task, hooks, state, honest[start : start + at_once])

        # if all models are the server's, all clients give its answers to a set that they share
        one_model = not hooks.takes("predict", "clients") and is_copied(server[0], received)
        for name, tested in sets.items():
            if one_model and name != OWN_IMAGES:
                scores = answers_of_server(name) * len(clients)
            else:
                scores = _scores_of_set(task, hooks, received, clients, tested)
            for client, score in zip(clients.ids, scores, strict=True):
                row = evaluation_row(described, client, [[score]])
                rows.append(TestSetRow(row, test_set=name))
    return rows


def _scores_of_set(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, tested: Federation
) -> list[Score]:
    """Return the scores of K clients, or of the server's model, on their images of a test set."""
    # the server's id is -1, which picks the last client; all clients have the same images here
    ids = list(clients.ids)
    clients = replace(clients, priors=tested.priors[ids])
    images = [tested.test[k] for k in ids]
    return score_of(replace(task, data=tested), hooks, received, clients, images)
