"""The contract between FedLoom and a plugin: its hooks, which docs/writing-a-method.md teaches.

Shapes: K clients in a cohort, B batch, T tokens, P prompts, d width, C classes. `received` is what
each client of a cohort downloaded [K, ...]; `clients` has ids, personal states [K, ...], class
priors [K, C] and numbers of training images.

A state (`Tree`) is a nested dict of tensors and plain numbers. In the server's state, `params` are
trained and `constants` are sent but not trained; anything else is the server's own. The runtime
owns all state: hooks return new state, change none in place, and a plugin keeps none between calls.
A hook may leave out arguments that it does not need. The first plugin that gives a result other
than None is the one that counts (`firstresult`). The body of a function marked as `hookimpl` too is
the default.

A wrapper (kind = "wrapper" in method.toml) implements hooks with `@hookimpl(wrapper=True)`: it
yields for what the method gives, and returns it changed. Of several wrappers the first is
innermost: it sees what the method gives, the next what the first makes of it. `receive` and
`deliver`, which only wrappers have, run the other way round: the last wrapper unpacks first.
"""

# pyright: reportReturnType=false
# a specification without default has a docstring for a body

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pluggy

from fedloom.common.errors import FedLoomError

if TYPE_CHECKING:
    from torch import Tensor

    from fedloom.common.trees import Tree
    from fedloom.data.federation import Batch, Federation
    from fedloom.federated.state import PersonalStates
    from fedloom.federated.task import Answers, Cohort, History, Task, Update

hookspec = pluggy.HookspecMarker("fedloom")
hookimpl = pluggy.HookimplMarker("fedloom")

REQUIRED = ("init_server", "client_update", "predict")
# hooks of wrappers alone, of whom the last unpacks first
UNPACKING = ("receive", "deliver")


@hookspec(firstresult=True)
def init_server(task: "Task") -> "Tree":
    """Return the server's state before round 1, tensors without a client axis.

    `params` {name: [...]}, `constants` {name: [...]}, and whatever else the server needs. `metrics`
    {name: number} are columns of rounds.parquet, with the values after each round. The key
    `side_channel` is for wrappers: they see it, then it is dropped. `task.round` is 0.
    """


@hookspec(firstresult=True)
@hookimpl
def init_client(task: "Task", client: int) -> "Tree":
    """Return what client number `client` keeps to itself. Default: nothing, {}.

    It is called when the client first takes part, with `task.round` 0, and its result handed back
    in `clients.state` from then on. Tensors have no client axis, and every client's equal shapes.
    """
    return {}


@hookspec(firstresult=True)
def unseen_client_state(
    task: "Task", client: int, states: "PersonalStates", received: "Tree"
) -> "Tree | None":
    """Return the personal state of a client that never trained, for its evaluation.

    Such a client is held out, was not sampled yet, or stands for the server's model (SERVER_MODEL).
    Default: what `init_client` gives.

    Args:
        states: personal states of the clients that did train, by id, and `states.mean(key)`, which
            nobody in a real federation would see.
        received: what the server sends the client after the round, without a client axis.
    """


@hookspec(firstresult=True)
@hookimpl
def available_clients(task: "Task") -> list[int]:
    """Return the ids of the clients that can be selected in round `task.round`.

    For wrappers: participation traces. Default: `task.data.participating`.
    """
    return task.data.participating


@hookspec(firstresult=True)
@hookimpl
def select_clients(task: "Task", available: list[int], history: "History") -> list[int]:
    """Return the ids of the clients that take part in round `task.round`.

    Default: `task.clients_per_round` of the available ones, or all if they are fewer, uniformly
    without replacement.

    Args:
        available: ids, ascending.
        history: of each client its number of training images, rounds selected in, and last loss.
    """
    # imported here, since a plan reads the hooks without torch
    from fedloom.hooks.defaults import sample_clients

    return sample_clients(available, task.clients_per_round, task.seed, task.round)


@hookspec(firstresult=True)
@hookimpl
def local_work(task: "Task", client: int) -> float:
    """Return the share of its local steps that `client` completes in this round, 0 < share <= 1.

    For wrappers: stragglers. Each training phase is cut to this share of its steps, rounded up.
    Default: 1.0.
    """
    return 1.0


@hookspec(firstresult=True)
@hookimpl
def attackers(task: "Task") -> list[int]:
    """Return the ids of the clients that attack, the same in every round: they are not evaluated.

    For wrappers: add yours (`draw_attackers`) to those that `yield` returns. Default: none.
    """
    return []


@hookspec(firstresult=True)
@hookimpl
def training_data(task: "Task") -> "Federation":
    """Return the data that clients train on in round `task.round`, as `task.data`.

    For wrappers that poison or withhold images (`relabelled`). `client_update` alone sees this
    data, and class priors in its cohorts are those of this data. Default: `task.data`.
    """
    return task.data


@hookspec(firstresult=True)
def triggered(task: "Task") -> "Federation | None":
    """Return test images with a trigger, which all have the class that the attackers want.

    For wrappers. The share of its own (`test`) that a client takes for that class is the column
    `backdoor_rate` of evaluation.parquet; a client may have none. Default: None, no trigger.
    """


@hookspec(firstresult=True)
@hookimpl
def download(task: "Task", server: "Tree", client: int) -> "Tree":
    """Return what the server sends to `client`, which may be SERVER_MODEL; counted as bytes down.

    Default: `params` and `constants` of the server's state. Every client must get the same keys and
    shapes, without a client axis; the runtime stacks them, so that `received` has tensors [K, ...].
    """
    return {key: server[key] for key in ("params", "constants") if key in server}


@hookspec(firstresult=True)
@hookimpl
def deliver(task: "Task", sent: "Tree", client: int) -> "Tree":
    """Return what `client` makes of its download `sent`: what all its hooks get as `received`.

    For wrappers that pack in `download`, which it follows everywhere, for SERVER_MODEL too.
    Default: as sent.
    """
    return sent


@hookspec(firstresult=True)
def client_update(task: "Task", received: "Tree", clients: "Cohort") -> "list[Update]":
    """Train the cohort and return one `Update` per client, in the order of `clients.ids`."""


@hookspec(firstresult=True)
@hookimpl
def receive(task: "Task", server: "Tree", updates: "list[Update]") -> "list[Update]":
    """Return what `aggregate` gets of the updates that the clients of the round sent.

    This hook is for wrappers, which unpack payloads whose bytes were counted as sent, or leave some
    updates out. In a wrapper, `yield` returns the updates as the wrappers outside of it have
    changed them; `dataclasses.replace(update, payload=...)` makes a new update. Default: the
    updates as they are, sorted by client id.
    """
    return updates


@hookspec(firstresult=True)
@hookimpl
def aggregate(task: "Task", server: "Tree", updates: "list[Update]") -> "Tree":
    """Return the server's next state, of the same keys as `init_server`'s.

    Default: the mean of `params` that method.toml declares as `aggregation`, all else as it was.
    The updates are those that `receive` returns. A run sorts them by client id; their order may
    change the result by rounding alone.
    """
    from fedloom.hooks.defaults import mean

    if task.aggregation is None:
        raise FedLoomError(
            f"{task.method}: method.toml declares no aggregation with these options; declare "
            "it, or write the hook aggregate"
        )
    return {**server, "params": mean(updates, weighted=task.aggregation == "weighted")}


@hookspec(firstresult=True)
def personalize(task: "Task", received: "Tree", clients: "Cohort") -> "Tree | None":
    """Return the personal states [K, ...] with which the cohort's clients answer their test images.

    Every client is asked once per evaluation, also those that never trained. The hook may train on
    the clients' training images; its result, of any keys, becomes `clients.state` in `predict`, and
    is then thrown away. Clients are evaluated with it and without it (column `personalized` of
    evaluation.parquet); the global test is without it. Default: None, no such step.
    """


@hookspec(firstresult=True)
def predict(task: "Task", received: "Tree", clients: "Cohort", batch: "Batch") -> "Tensor | None":
    """Return logits [K, B, C] for B images of each client.

    Where `batch.mask` is false, an image only fills up the batch, and its logits are ignored.

    A client comes with its personal state, that of `unseen_client_state` if it never trained, and
    in a second pass with that of `personalize`. On the global test set the server's model is a
    cohort of one client (SERVER_MODEL, `clients.is_server_model`) with uniform class priors; return
    None if the server has no model, so that those of the clients are averaged.

    Leave out `clients` if the logits follow from `received` and the images alone: where all clients
    receive the same, the global test then takes over their answers.
    """


@hookspec(firstresult=True)
def artefact(
    task: "Task", server: "Tree", cohorts: "Iterator[tuple[Tree, Cohort, Batch]]", name: str
) -> dict[str, list]:
    """Return the table `name`, of those that method.toml lists in `artefacts`, by column.

    `cohorts` yields (received, clients, batch) over all clients' test images, after the last round.
    """


@hookspec(firstresult=True)
def audit_table(task: "Task", answers: "Answers", name: str) -> dict[str, list] | None:
    """Return a wrapper's table `name`, of those that its method.toml lists in `artefacts`.

    For wrappers. `answers`, given rows of images by client id, yields (clients, batch, logits [K,
    B, C]): how each client's model, not personalised, answers its own. Default: None, of another
    name too.
    """
