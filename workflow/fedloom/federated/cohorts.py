"""Prepare cohorts of clients for an evaluation: their downloads and their personal states."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedloom.common.trees import Tree, leaves, stack, tensor_map
from fedloom.federated import check_results, groups
from fedloom.federated.logit_offsets import adding_to_logits
from fedloom.federated.round import download_to, personal_state, with_training_offsets
from fedloom.federated.state import State
from fedloom.federated.task import Cohort, Task, cohort
from fedloom.hooks.run_hooks import Hooks


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

    max_clients = groups.clients_evaluated_at_once(task, state)
    max_images = groups.images_per_pass(task)
    for group in groups.groups_by_images(sizes, max_clients, max_images):
        yield prepare_clients(task, hooks, state, sorted(by_size[k] for k in group))


def prepare_clients(task: Task, hooks: Hooks, state: State, ids: list[int]) -> tuple[Tree, Cohort]:
    """Return (received, clients) for the clients `ids`, as they are evaluated after the round.

    `received` is what they get from the server, stacked [K, ...]. `clients` is their cohort, with
    the personal states that training made.
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
    clients = cohort(task, ids, list(states.values()))
    if not clients.is_server_model:
        offsets = hooks.answer_offsets(task=task, clients=clients)
        check_results.check_offsets(task, "answer_offsets", clients, offsets)
        clients = replace(clients, logit_offsets=offsets)
    return stack(received), clients


def all_answer_the_same(server_model: Tree, received: Tree, clients: Cohort) -> bool:
    """Return True if K clients answer as the server's model, where `predict` takes no clients.

    They do if all of them received [K, ...] the same as the server's model [1, ...], and no wrapper
    adds to their logits.
    """
    if clients.logit_offsets is not None:
        return False

    def equal(one: object, several: object) -> bool:
        """Return True if `several` [K, ...] is K copies of `one` [1, ...]."""
        if isinstance(one, Tensor) and isinstance(several, Tensor):
            same = one.dtype == several.dtype and one.shape[1:] == several.shape[1:]
            return same and torch.equal(several, one.expand_as(several))
        return type(one) is type(several) and one == several

    server_leaves = dict(leaves(server_model))
    client_leaves = dict(leaves(received))
    if server_leaves.keys() != client_leaves.keys():
        return False
    return all(equal(value, client_leaves[path]) for path, value in server_leaves.items())


def personalize_cohort(task: Task, hooks: Hooks, received: Tree, clients: Cohort) -> Cohort | None:
    """Return the clients with the states of `personalize`; None if the hook returns None."""
    # split the cohort: `personalize` may train, which takes more memory than prediction
    received_by_first = tensor_map(lambda value: value[0], received)
    state_of_first = tensor_map(lambda value: value[0], clients.state)
    at_once = groups.clients_trained_at_once(task, received_by_first, state_of_first)

    trees: list[Tree] = []
    for group in groups.equal_groups(len(clients), at_once):
        members = clients
        if len(group) != len(clients):
            members = clients.subset(group)
        members = with_training_offsets(task, hooks, members)
        sent = _part_of_tree(received, group)
        with torch.enable_grad(), adding_to_logits(members.logit_offsets):
            states = hooks.personalize(task=task, received=sent, clients=members)
        if states is None:
            return None
        check_results.check_personalized(task, members, states)
        trees.append(tensor_map(torch.Tensor.detach, states))

    return replace(clients, state=tensor_map(lambda *values: torch.cat(values), *trees))


def _part_of_tree(tree: Tree, group: range) -> Tree:
    """Return the part of the tensors [K, ...] of a tree that belongs to a group of clients."""
    return tensor_map(lambda value: value[group.start : group.stop], tree)
