"""The contract between FedLoom and a plugin: its hooks, which docs/writing-a-method.md teaches.

Shapes: K clients in a cohort, B batch, T tokens, P prompts, d width, C classes.

A state (`Tree`) is a nested dict of tensors and plain numbers. In the server's state, `params` are
trained and `constants` are sent but not trained; anything else is the server's own. The runtime
owns all state: hooks return new state, change none in place, and a plugin keeps none between calls.
A hook may leave out arguments that it does not need. The first plugin that gives a result other
than None is the one that counts (`firstresult`).

A wrapper (kind = "wrapper" in method.toml) implements hooks with `@hookimpl(wrapper=True)`: it
yields for what the method gives, and returns it changed. Of several wrappers the first is
innermost: it sees what the method gives, the next what the first makes of it. `receive` and
`deliver`, which only wrappers have, run the other way round: the last wrapper unpacks first.
"""

# pyright: reportReturnType=false
# a specification has a docstring for a body

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from torch import Tensor

    from fedloom.common.tensors import Tree
    from fedloom.data.federation import Batch, Federation
    from fedloom.federated.state import PersonalStates
    from fedloom.federated.task import Answers, Cohort, History, Task, Update

hookspec = pluggy.HookspecMarker("fedloom")
hookimpl = pluggy.HookimplMarker("fedloom")

REQUIRED = ("init_server", "client_update", "predict")
UNPACKING = ("receive", "deliver")  # of wrappers alone, the last wrapper first


@hookspec(firstresult=True)
def init_server(task: "Task") -> "Tree":
    """Return the server's state before round 1, tensors without a client axis.

    `params` {name: [...]}, `constants` {name: [...]}, and whatever else the server needs. `metrics`
    {name: number} are columns of rounds.parquet, with the values after each round. The key
    `side_channel` is for wrappers: they see it, then it is dropped.

    Args:
        task: everything that is fixed; `task.round` is 0.
    """


@hookspec(firstresult=True)
def init_client(task: "Task", client: int) -> "Tree":
    """Return what client number `client` keeps to itself. Default: nothing, {}.

    The runtime calls it when the client takes part for the first time, with `task.round` 0, and
    hands the state back in `clients.state` from then on. Tensors have no client axis, and every
    client's have the same shapes.
    """


@hookspec(firstresult=True)
def unseen_client_state(
    task: "Task", client: int, states: "PersonalStates", received: "Tree"
) -> "Tree":
    """Return the personal state with which a client is evaluated that never trained.

    Such a client is held out, not sampled yet, or stands for the server's model (SERVER_MODEL).
    Default: what `init_client` gives.

    Args:
        states: personal states of the clients that did train, by id, and `states.mean(key)`. They
            exist for evaluation alone: nobody in a real federation would see them.
        received: what the server sends the client after the round, without a client axis.
    """


@hookspec(firstresult=True)
def available_clients(task: "Task") -> list[int]:
    """Return the ids of the clients that can be selected in round `task.round`.

    For wrappers: participation traces. Default: `task.data.participating`.
    """


@hookspec(firstresult=True)
def select_clients(task: "Task", available: list[int], history: "History") -> list[int]:
    """Return the ids of the clients that take part in round `task.round`.

    Default: `task.clients_per_round` of the available ones, uniformly without replacement; all of
    them if they are fewer.

    Args:
        available: ids, ascending.
        history: what the server knows of each client: number of training images, rounds that it
            was selected in, last training loss.
    """


@hookspec(firstresult=True)
def local_work(task: "Task", client: int) -> float:
    """Return the share of its local steps that `client` completes in this round, 0 < share <= 1.

    For wrappers: stragglers that send what they have when the round ends. Default: 1.0. Each
    training phase of the round is cut to this share of its steps, rounded up.
    """


@hookspec(firstresult=True)
def attackers(task: "Task") -> list[int]:
    """Return the ids of the clients that attack, the same in every round: they are not evaluated.

    For wrappers: add yours (`draw_attackers`) to those that `yield` returns. Default: none.
    """


@hookspec(firstresult=True)
def training_data(task: "Task") -> "Federation":
    """Return the data that clients train on in round `task.round`, as `task.data`.

    For wrappers that poison or withhold images (`relabelled`). `client_update` alone sees this
    data, and class priors in its cohorts are those of this data. Default: `task.data`.
    """


@hookspec(firstresult=True)
def triggered(task: "Task") -> "Federation | None":
    """Return test images with a trigger, which all have the class that the attackers want.

    For wrappers. The share of its own (`test`) that a client takes for that class is the column
    `backdoor_rate` of evaluation.parquet; a client may have none. Default: None, no trigger.
    """


@hookspec(firstresult=True)
def download(task: "Task", server: "Tree", client: int) -> "Tree":
    """Return what the server sends to `client`, which may be SERVER_MODEL; counted as bytes down.

    Default: `params` and `constants` of the server's state. Every client must get the same keys and
    shapes, without a client axis; the runtime stacks them, so that `received` has tensors [K, ...].
    """


@hookspec(firstresult=True)
def deliver(task: "Task", sent: "Tree", client: int) -> "Tree":
    """Return what `client` makes of its download `sent`: what all its hooks get as `received`.

    For wrappers that pack in `download`, which it follows everywhere, for SERVER_MODEL too.
    Default: as sent.
    """


@hookspec(firstresult=True)
def client_update(task: "Task", received: "Tree", clients: "Cohort") -> "list[Update]":
    """Train the cohort and return one `Update` per client, in the order of `clients.ids`.

    Args:
        received: what each client downloaded, [K, ...].
        clients: ids, personal states [K, ...], class priors [K, C], numbers of training images.
    """


@hookspec(firstresult=True)
def receive(task: "Task", server: "Tree", updates: "list[Update]") -> "list[Update]":
    """Return what `aggregate` gets of the updates that the clients of the round sent.

    For wrappers: they unpack payloads whose bytes were counted as sent, or leave updates out, but
    not all. Default: the updates as they are. A wrapper yields for what those outside of it make of
    them; `dataclasses.replace(update, payload=...)` returns a new update.

    Args:
        server: the state before the round.
        updates: as sent, sorted by client id.
    """


@hookspec(firstresult=True)
def aggregate(task: "Task", server: "Tree", updates: "list[Update]") -> "Tree":
    """Return the server's next state, of the same keys as `init_server`'s.

    Default: the mean of the updates' `params` that method.toml declares as `aggregation`, and all
    else of the state as it was.

    Args:
        server: the state before the round.
        updates: those that `receive` returns; without wrappers one per client of the round. A run
            sorts them by client id; their order may change the result by rounding alone.
    """


@hookspec(firstresult=True)
def personalize(task: "Task", received: "Tree", clients: "Cohort") -> "Tree | None":
    """Return the personal states [K, ...] with which the cohort's clients answer their test images.

    Every client is asked, those that never trained too, once per evaluation and before its test
    images. The hook may train on the clients' training images; its result becomes `clients.state`
    in `predict`, and is thrown away after the evaluation. Its keys need not be those of
    `clients.state`. Clients are evaluated with it and without it (column `personalized` of
    evaluation.parquet); the global test is without it. Default: None, no such step.

    Args:
        received: what each client downloads after the round, [K, ...].
        clients: with the personal states that they have, or that `unseen_client_state` gives.
    """


@hookspec(firstresult=True)
def predict(task: "Task", received: "Tree", clients: "Cohort", batch: "Batch") -> "Tensor | None":
    """Return logits [K, B, C] of a batch of each client's images.

    A client comes with its personal state, that of `unseen_client_state` if it never trained, and
    in a second pass with that of `personalize`, if the method has this hook. On the global test set
    the server's model is asked as a cohort of one client (SERVER_MODEL, `clients.is_server_model`),
    whose class priors are uniform; return None if there is no such model, and the clients' own are
    averaged.

    Leave out the argument `clients` if the logits follow from `received` and the images alone:
    where all clients receive the same, the global test then takes over their answers.

    Args:
        received: what each client downloads after the round, [K, ...].
        batch: B images of each of the K clients; padded positions (`batch.mask` false) are ignored.
    """


@hookspec(firstresult=True)
def artefact(
    task: "Task",
    server: "Tree",
    cohorts: "Iterator[tuple[Tree, Cohort, Batch]]",
    name: str,
) -> dict[str, list]:
    """Return the table `name`, of those that method.toml lists in `artefacts`, by column.

    Args:
        server: the state after the last round.
        cohorts: yields (received, clients, batch) over all clients' test images.
    """


@hookspec(firstresult=True)
def audit_table(task: "Task", answers: "Answers", name: str) -> dict[str, list] | None:
    """Return a wrapper's table `name`, of those that its method.toml lists in `artefacts`.

    For wrappers. Default: None, of another name too.

    Args:
        answers: given rows of images by client id, yields (clients, batch, logits [K, B, C]): how
            each client's model, not personalised, answers its own.
    """
