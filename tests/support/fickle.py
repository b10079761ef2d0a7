"""A method that uses every hook, and does wrong whatever a test asks for.

A head is averaged, a bias stays with its client. `CHANGE` holds, by the name of a hook, what
becomes of its result; `loss` counts as one.
"""

import torch

from fedloom.toolbox import cross_entropy, hookimpl, linear, make_updates, mean, train_locally

CHANGE = {}
SENT = {}  # what unseen_client_state was last given as received


def changed(name, task, value):
    return CHANGE[name](task, value) if name in CHANGE else value


@hookimpl
def init_server(task):
    head = task.backbone.init_head(task.num_classes)
    return changed("init_server", task, {"params": {"head": head}, "steps": torch.zeros(1)})


@hookimpl
def init_client(task, client):
    return changed("init_client", task, {"bias": torch.zeros(task.num_classes)})


@hookimpl
def unseen_client_state(task, client, states, received):
    SENT.update(received)
    bias = sum(state["bias"] for state in states.values()) / len(states)
    return changed("unseen_client_state", task, {"bias": bias})


@hookimpl
def available_clients(task):
    return changed("available_clients", task, task.data.participating[:4])


@hookimpl
def select_clients(task, available, history):
    assert set(history.rounds) == set(task.data.participating)
    return changed("select_clients", task, available[:3])


@hookimpl
def attackers(task):
    return changed("attackers", task, [])


@hookimpl
def training_data(task):
    return changed("training_data", task, task.data)


@hookimpl
def triggered(task):
    return changed("triggered", task, None)


@hookimpl
def local_work(task, client):
    return changed("local_work", task, 0.5 if client == 2 else 1)


@hookimpl
def download(task, server, client):
    return changed("download", task, {"params": dict(server["params"])})


def logits(params, batch):
    return linear(batch.features, params["head"]) + params["bias"][:, None]  # [K, B, C]


def loss(task, params, received, clients, batch):
    return changed("loss", task, cross_entropy(logits(params, batch), batch.labels))


@hookimpl
def client_update(task, received, clients):
    params = received["params"] | clients.state
    trained = train_locally(task, loss, received, clients, params=params)
    return changed("client_update", task, make_updates(trained, clients, kept=("bias",)))


@hookimpl
def aggregate(task, server, updates):
    state = {"params": mean(updates), "steps": server["steps"] + 1}
    return changed("aggregate", task, state)


@hookimpl
def personalize(task, received, clients):
    params = received["params"] | clients.state
    trained = train_locally(task, loss, received, clients, params=params, epochs=1)
    return changed("personalize", task, {"bias": trained.params["bias"]})


@hookimpl
def predict(task, received, clients, batch):
    return changed("predict", task, logits(received["params"] | clients.state, batch))


@hookimpl
def training_offsets(task, clients):
    return changed("training_offsets", task, None)


@hookimpl
def answer_offsets(task, clients):
    return changed("answer_offsets", task, None)


@hookimpl
def artefact(task, server, cohorts, name):
    return changed("artefact", task, {"norm": [server["params"]["head"].norm().item()]})


@hookimpl
def audit_table(task, answers, name):
    return changed("audit_table", task, None)
