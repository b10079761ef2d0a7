"""The contract between FedLoom and a plugin: the hooks that a plugin may implement.

docs/writing-a-method.md teaches them. Shapes: K clients in a cohort, B images in a batch, T tokens,
P prompts, d width, C classes.

Two arguments occur in many hooks:

- `received` is what each client of a cohort downloaded, stacked [K, ...].
- `clients` is the cohort: ids, personal states [K, ...], class priors [K, C] and numbers of
  training images.

A state (`Tree`) is a nested dict of tensors and plain numbers. In the server's state, `params` are
trained, and `constants` are sent to the clients but not trained. Its other keys stay on the server.

Rules of all hooks:

1. The runtime owns all state. A hook returns new state and changes no state in place. A plugin
   keeps no state between two calls.
2. A hook may leave out arguments that it does not need.
3. The first result that is not None counts (`firstresult`): the method's, or else the default's.
4. A function below with the mark `hookimpl` has the default as its body.

A wrapper (kind = "wrapper" in method.toml) implements hooks with `@hookimpl(wrapper=True)`. Such a
hook yields once. The `yield` returns the method's result, and the hook returns the changed result.

The first of several wrappers is the innermost: it gets the method's result, and the second gets
what the first returns. `receive` and `deliver`, which only wrappers have, run in the opposite
order: the last wrapper unpacks first.
"""

# pyright: reportReturnType=false
# a hook without a default has only a docstring as its body

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pluggy

from fedloom.common.errors import FedLoomError

if TYPE_CHECKING:
    from torch import Tensor

    from fedloom.common.trees import Tree
    from fedloom.data.batch import Batch
    from fedloom.data.federation import Federation
    from fedloom.federated.state import PersonalStates
    from fedloom.federated.task import Answers, Cohort, History, Task, Update

hookspec = pluggy.HookspecMarker("fedloom")
hookimpl = pluggy.HookimplMarker("fedloom")

REQUIRED = ("init_server", "client_update", "predict")
# hooks of wrappers alone; they run in the opposite order, so the last wrapper unpacks first
UNPACKING = ("receive", "deliver")


@hookspec(firstresult=True)
def init_server(task: "Task") -> "Tree":
    """Return the server's state before round 1. Its tensors have no client axis.

    `task.round` is 0. These keys have a meaning:

    - `params` {name: [...]} are trained.
    - `constants` {name: [...]} are sent to the clients but not trained.
    - `metrics` {name: number} become columns of rounds.parquet, with the values after each round.
    - `side_channel` is for wrappers. They see it, and then the runtime drops it.

    The server may keep whatever else it needs under other keys.
    """


@hookspec(firstresult=True)
@hookimpl
def init_client(task: "Task", client: int) -> "Tree":
    """Return the first personal state of client number `client`. Default: {}, it keeps nothing.

    The runtime calls this hook with `task.round` 0, before the client's first round. In that round
    `clients.state` is this state, and in each later round the state that the client's last update
    kept. Tensors have no client axis. The states of all clients must have equal keys and shapes.
    """
    return {}


@hookspec(firstresult=True)
def unseen_client_state(
    task: "Task", client: int, states: "PersonalStates", received: "Tree"
) -> "Tree | None":
    """Return the personal state of a client that never trained, for its evaluation.

    Such a client is held out, was not sampled yet, or stands for the server's model (SERVER_MODEL).
    Default: the result of `init_client`.

    Args:
        states: personal states of the clients that did train, by id. `states.mean(key)` is their
            mean, which nobody in a real federation would see.
        received: what the server sends the client after the round, without a client axis.
    """


@hookspec(firstresult=True)
@hookimpl
def available_clients(task: "Task") -> list[int]:
    """Return the ids of the clients that can be selected in round `task.round`.

    This hook is for wrappers that simulate which clients can be reached (participation traces).
    Default: `task.data.participating`.
    """
    return task.data.participating


@hookspec(firstresult=True)
@hookimpl
def select_clients(task: "Task", available: list[int], history: "History") -> list[int]:
    """Return the ids of the clients that take part in round `task.round`.

    Default: draw `task.clients_per_round` of the available clients uniformly without replacement,
    or take all of them if they are fewer.

    Args:
        available: ids, ascending.
        history: for each client, its number of training images, the number of rounds that it was
            selected in, and its last training loss.
    """
    # imported here, since planning reads the hooks and must not import torch
    from fedloom.hooks.defaults import sample_clients

    return sample_clients(available, task.clients_per_round, task.seed, task.round)


@hookspec(firstresult=True)
@hookimpl
def local_work(task: "Task", client: int) -> float:
    """Return the share of its local steps that `client` completes in this round, 0 < share <= 1.

    This hook is for wrappers that simulate stragglers. Each training phase is cut to this share of
    its steps, rounded up. Default: 1.0.
    """
    return 1.0


@hookspec(firstresult=True)
@hookimpl
def attackers(task: "Task") -> list[int]:
    """Return the ids of the clients that attack. They must be the same in every round.

    Attackers are not evaluated. This hook is for wrappers: add your own attackers
    (`draw_attackers`) to those that `yield` returns. Default: none.
    """
    return []


@hookspec(firstresult=True)
@hookimpl
def training_data(task: "Task") -> "Federation":
    """Return the data that clients train on in round `task.round`, in the form of `task.data`.

    This hook is for wrappers that poison or withhold images (`relabelled`). Only `client_update`
    gets this data. The class priors of its cohorts are computed from this data too. Default:
    `task.data`.
    """
    return task.data


@hookspec(firstresult=True)
def triggered(task: "Task") -> "Federation | None":
    """Return test images with a backdoor trigger. Their label is the class that the attackers want.

    This hook is for wrappers. A client may have no such images (`test`). The share of them that a
    client's model takes for the wanted class is the column `backdoor_rate` of evaluation.parquet.
    Default: None, there is no trigger.
    """


@hookspec(firstresult=True)
@hookimpl
def download(task: "Task", server: "Tree", client: int) -> "Tree":
    """Return what the server sends to `client`, which may be SERVER_MODEL.

    The size of what is sent is counted as bytes down. Every client must get the same keys and
    shapes, without a client axis. The runtime stacks the downloads of a cohort: tensors of
    `received` are [K, ...]. Default: `params` and `constants` of the server's state.
    """
    return {key: server[key] for key in ("params", "constants") if key in server}


@hookspec(firstresult=True)
@hookimpl
def deliver(task: "Task", sent: "Tree", client: int) -> "Tree":
    """Return what `client` unpacks from its download `sent`. Its hooks get this as `received`.

    This hook is for wrappers that pack the download in `download`. It runs after each `download`,
    for SERVER_MODEL too. Default: `sent` as it is.
    """
    return sent


@hookspec(firstresult=True)
def client_update(task: "Task", received: "Tree", clients: "Cohort") -> "list[Update]":
    """Train the cohort and return one `Update` per client, in the order of `clients.ids`."""


@hookspec(firstresult=True)
def training_offsets(task: "Task", clients: "Cohort") -> "Tensor | None":
    """Return what is added to the logits of each client [K, C] in the losses of its training.

    This hook is for wrappers, and so is `answer_offsets`. In `client_update` and `personalize`,
    every `cross_entropy` of the toolbox adds the offsets. `task.data` is what the clients train on.
    Default: None, nothing is added.
    """


@hookspec(firstresult=True)
def answer_offsets(task: "Task", clients: "Cohort") -> "Tensor | None":
    """Return what is added to the logits [K, C] with which each client answers its images.

    The runtime adds the offsets to the result of `predict`. It asks for clients alone: nothing is
    added in the global test, where the server's model answers. Default: None, nothing is added.
    """


@hookspec(firstresult=True)
@hookimpl
def receive(task: "Task", server: "Tree", updates: "list[Update]") -> "list[Update]":
    """Return the updates that `aggregate` gets, from those that the clients of the round sent.

    This hook is for wrappers. They unpack payloads, or leave some updates out; the bytes that are
    counted are those of the packed payloads. In a wrapper, `yield` returns the updates as the
    wrappers listed after it have changed them. `dataclasses.replace(update, payload=...)` makes a
    new update. Default: the updates as they are, sorted by client id.
    """
    return updates


@hookspec(firstresult=True)
@hookimpl
def aggregate(task: "Task", server: "Tree", updates: "list[Update]") -> "Tree":
    """Return the server's next state, with the same keys as the state of `init_server`.

    The updates are those that `receive` returns. A run sorts them by client id. In another order
    they may change the result by rounding alone.

    Default: the mean of the clients' `params`, "plain" or "weighted" as method.toml declares under
    `aggregation`. All other keys stay as they were.

    Raises:
        FedLoomError: the default is needed, but method.toml declares no `aggregation`.
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

    The runtime asks for every client once per evaluation, also for clients that never trained. The
    hook may train on the clients' training images. In `predict`, `clients.state` is then the result
    of this hook, which may have any keys. After the evaluation the result is thrown away.

    Clients are evaluated without this step and with it (column `personalized` of
    evaluation.parquet). The global test is without it. Default: None, there is no such step.
    """


@hookspec(firstresult=True)
def predict(task: "Task", received: "Tree", clients: "Cohort", batch: "Batch") -> "Tensor | None":
    """Return logits [K, B, C] for B images of each client.

    Where `batch.mask` is false, an image only fills up the batch, and its logits are ignored.

    1. A client that trained comes with its personal state. A client that never trained comes with
       the state of `unseen_client_state`. In a second pass, all clients come with the states of
       `personalize`.
    2. On the global test set, the server's model is a cohort of one client (SERVER_MODEL,
       `clients.is_server_model`) with uniform class priors. Return None if the server has no model:
       the answers of the clients' models are then averaged.
    3. Leave out the argument `clients` if the logits follow from `received` and the images alone.
       The global test then reuses the clients' answers, where all clients receive the same.
    """


@hookspec(firstresult=True)
def artefact(
    task: "Task", server: "Tree", cohorts: "Iterator[tuple[Tree, Cohort, Batch]]", name: str
) -> dict[str, list]:
    """Return the table `name` as a dict of columns. method.toml lists the names in `artefacts`.

    `cohorts` yields (received, clients, batch) over all clients' test images, after the last round.
    """


@hookspec(firstresult=True)
def audit_table(task: "Task", answers: "Answers", name: str) -> dict[str, list] | None:
    """Return a wrapper's table `name` as a dict of columns.

    This hook is for wrappers. A wrapper lists the names of its tables in `artefacts` of its
    method.toml, and returns None for any other name. Default: None.

    `answers` is a function. It takes rows of images by client id, and yields (clients, batch,
    logits [K, B, C]) for them: what each client's model answers before it is personalised.
    """
