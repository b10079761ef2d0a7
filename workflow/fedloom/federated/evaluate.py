"""Evaluate the clients on their own test images, and the server's model on all of them."""

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
from fedloom.data.federation import Batch, Federation
from fedloom.federated import check_results, groups
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
    """Return the rows of evaluation.parquet of round `task.round`, sorted by client id.

    A method that personalises has two rows per client, without and with it. The row of the global
    test comes last: that of the server's model on all test images.

    Args:
        ids: the clients to evaluate; default: all, whether they participate or not.
        confusion: counts the answers, of a method that personalises those of personalised clients.
    """
    server: tuple[Tree, Cohort] | None = None
    if global_test:
        server = received_by(task, hooks, state, [SERVER_MODEL])
    triggered = hooks.triggered(task=task)
    if triggered is not None:
        check_results.check_federation(task, "triggered", triggered)

    # clients that a method cannot tell apart have given the answers of the server's model
    everyone = ids is None or len(ids) == len(task.data.tested)
    one_model = everyone and not hooks.takes("predict", "clients")

    # the clients; `answers` are those without personalisation, by cohort
    rows: list[EvaluationRow] = []
    answers: list[list[Score]] = []
    for received, clients in evaluation_cohorts(task, hooks, state, ids):
        # scored before `personalize`, which may write to the states that it gets
        scores, new_rows = _score_clients(task, hooks, received, clients, triggered, False)
        answers.append(scores)
        rows += new_rows
        one_model = one_model and server is not None and is_copied(server[0], received)

        # the same clients, with the states of `personalize`
        personal = personalized_by(task, hooks, received, clients)
        if personal is not None:
            scores, new_rows = _score_clients(task, hooks, received, personal, triggered, True)
            rows += new_rows

        if confusion is not None:
            for client, score in zip(clients.ids, scores, strict=True):
                confusion.add(task, client, [score])
    rows.sort(key=lambda row: (row.client_id, row.personalized))

    # the global test, last
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
    """Return how K clients answer their own test images, and their rows."""
    # what they answer, also to images with a trigger, if an attack has one
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
    """Return the row of the global test alone."""
    return evaluate(task, hooks, state, [], global_test=True)[-1]


def _answers_to_all(
    task: Task, hooks: Hooks, state: State, ids: Sequence[int] | None, server: tuple[Tree, Cohort]
) -> list[Score]:
    """Return how the server's model answers all test images.

    If the method has no such model, the participating clients' models (of `ids`, if given) answer
    all of them instead (SGPT's protocol).
    """
    images = np.sort(np.concatenate(task.data.test))
    scores = score_of(task, hooks, *server, [images])
    if scores:
        return scores

    # there is no such model: the participating clients in its place
    chosen = [k for k in ids or task.data.participating if k in task.data.position]
    at_once = groups.clients_evaluated_at_once(task, state)
    for group in groups.equal_groups(len(chosen), at_once):
        received, clients = received_by(task, hooks, state, [chosen[k] for k in group])
        scores += score_of(task, hooks, received, clients, [images] * len(clients))
    return scores


def _backdoor_rates(
    task: Task, hooks: Hooks, received: Tree, clients: Cohort, triggered: Federation
) -> dict[int, float]:
    """Return the share of its triggered images that each client takes for the wanted class."""
    # a client may have no images with a trigger
    chosen = [k for k, client in enumerate(clients.ids) if len(triggered.test[client])]
    if not chosen:
        return {}
    sent = tensor_map(lambda value: value[chosen], received)
    members = clients.subset(chosen)

    # all labels in `triggered` are the wanted class, so the right answers are the attack's
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

    `answers` holds the scores of the clients of each cohort; for one client it is `[[score]]`.
    """
    scores = list(chain.from_iterable(answers))
    images = sum(len(score.images) for score in scores)

    # a sum for each cohort, since the order of summation decides the last bits
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
    """Return the share of correct answers to each part of a stream that has arrived, from 1 on."""
    if task.data.rounds is None:
        return {}
    images = np.concatenate([score.images for score in scores])
    predicted = np.concatenate([score.predicted for score in scores])
    correct = predicted == task.data.labels.cpu().numpy()[images]

    # the part of every image, in the order of arrival
    arrives = task.data.rounds[0]
    part_of_image = np.unique(arrives, return_inverse=True)[1]  # [N], from 0
    parts = part_of_image[images]
    return {
        f"{STREAM_PART_PREFIX}{part + 1}": float(correct[parts == part].mean())
        for part in np.unique(parts)
    }


@torch.no_grad()
def compute_artefact(task: Task, hooks: Hooks, state: State, name: str) -> dict[str, list]:
    """Compute a table of a wrapper, or else of the method, for figures and tables, by column."""

    def batches(images: Sequence[np.ndarray]) -> Iterator[tuple[Tree, Cohort, Batch]]:
        """Yield these images of every client, in batches, with what its cohort received."""
        for received, clients in evaluation_cohorts(task, hooks, state):
            for batch in groups.iterate_examples(task, [images[k] for k in clients.ids]):
                yield received, clients, batch

    def answers(images: Sequence[np.ndarray]) -> Iterator[tuple[Cohort, Batch, Tensor]]:
        """Yield the logits [K, B, C] of the same batches."""
        for received, clients, batch in batches(images):
            logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
            yield clients, batch, check_results.check_logits(task, clients, batch.labels, logits)

    # a wrapper's table, or else the method's
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
    """Yield what clients (default: all) receive, and the clients, in cohorts of similar size."""
    # of similar size, since a batch has the images of its largest client for each
    ids = task.data.tested if ids is None else ids
    by_size = sorted(ids, key=lambda k: (len(task.data.test[k]), k))
    sizes = [len(task.data.test[k]) for k in by_size]

    clients_at_once = groups.clients_evaluated_at_once(task, state)
    images_at_once = groups.images_at_once(task)
    for group in groups.groups_by_images(sizes, clients_at_once, images_at_once):
        yield received_by(task, hooks, state, sorted(by_size[k] for k in group))


def received_by(task: Task, hooks: Hooks, state: State, ids: list[int]) -> tuple[Tree, Cohort]:
    """Return what the clients receive after the round, stacked [K, ...], and the clients."""
    _, received = download_to(task, hooks, state, ids)

    # a client that never trained gets what the method makes for it, or a state as at its start
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
        """Return True if a leaf of K clients is that of one, [1, ...], K times."""
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
    """Return the clients with the states that `personalize` gives; None if it gives none."""
    # `personalize` may train, which takes more memory than to predict
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
    """Return how K clients answer their images; [] for the server's model if there is none."""
    answers: list[Tensor] = []
    correct, loss = torch.zeros(2, len(images), device=task.data.device)  # [K] each

    # add up the batches on the device
    for batch in groups.iterate_examples(task, images):
        # what the model says of them; a method may have no server's model
        logits = hooks.predict(task=task, received=received, clients=clients, batch=batch)
        if logits is None and clients.is_server_model:
            return []
        logits = check_results.check_logits(task, clients, batch.labels, logits)
        answers.append(logits.argmax(-1))

        # hits, and losses, without the images that fill up the batch
        hits = (answers[-1] == batch.labels) & batch.mask
        losses = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        correct += hits.sum(1)
        loss += losses.view_as(batch.mask).where(batch.mask, 0).sum(1)

    # fetch the sums, which is the one wait for the device, and check them
    correct, loss = torch.stack([correct, loss]).tolist()
    for client, value in zip(clients.ids, loss, strict=True):
        call = check_results.describe_hook_call(task, "predict", client)
        check_results.require_finite([(f"{call}: the loss of its predictions", value)])

    # a client's answers, without those to images that fill up
    predicted = torch.cat(answers, 1).cpu().numpy()
    return [
        Score(rows, predicted[k, : len(rows)], int(correct[k]), loss[k])
        for k, rows in enumerate(images)
    ]


@torch.no_grad()
def answer_test_sets(task: Task, hooks: Hooks, state: State) -> list[TestSetRow]:
    """Let honest participating clients that have test images answer all sets; return their rows.

    A row is of a client and a `test_set`: `own` are its own test images, `base` those of all
    clients, and the others, of classes and datasets that no client trains on, are
    `task.data.unseen`, by their names. Clients answer as they are before `personalize`.
    """
    data = task.data

    # the sets, by name
    everything = np.sort(np.concatenate(data.test))
    base = replace(data, test=[everything] * data.num_clients)
    sets = {OWN_IMAGES: data, BASE_CLASSES: base, **data.unseen}

    # the clients, and the server's model, which may answer for them
    server = received_by(task, hooks, state, [SERVER_MODEL])
    attacking = attacking_clients(task, hooks)
    honest = [k for k in data.tested if k in data.position and k not in attacking]

    @cache
    def answers_of_server(name: str) -> list[Score]:
        return _scores_of_set(task, hooks, *server, sets[name])

    # the images of other datasets are in no part of a stream
    described = replace(task, data=replace(data, rounds=None))

    # cohort by cohort, as many clients at once as every set allows
    rows: list[TestSetRow] = []
    tasks = [replace(task, data=tested) for tested in sets.values()]
    at_once = min(groups.clients_evaluated_at_once(each, state) for each in tasks)
    for start in range(0, len(honest), at_once):
        received, clients = received_by(task, hooks, state, honest[start : start + at_once])

        # where all models are the server's, its answers to a common set are theirs
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
    """Return how K clients, or the server's model, answer their test images of a set."""
    # the server's id, -1, stands for the images of the last client, which all clients have
    ids = list(clients.ids)
    clients = replace(clients, priors=tested.priors[ids])
    images = [tested.test[k] for k in ids]
    return score_of(replace(task, data=tested), hooks, received, clients, images)
