"""A wrapper that sends half of every number's bits, and unpacks wrong whatever a test wants it to.

`CHANGE` is as in tests/support/fickle.py.
"""

from dataclasses import replace

from fedloom.toolbox import hookimpl, tensor_map

CHANGE = {}


def changed(name, task, value):
    return CHANGE[name](task, value) if name in CHANGE else value


def half(tree):
    return tensor_map(lambda value: value.half(), tree)


def whole(tree):
    return tensor_map(lambda value: value.float(), tree)


@hookimpl(wrapper=True)
def download(task, server, client):
    return half((yield))


@hookimpl(wrapper=True)
def deliver(task, sent, client):
    return changed("deliver", task, whole((yield)))


@hookimpl(wrapper=True)
def client_update(task, received, clients):
    updates = yield
    return [replace(update, payload=half(update.payload)) for update in updates]


@hookimpl(wrapper=True)
def receive(task, server, updates):
    updates = yield
    unpacked = [replace(update, payload=whole(update.payload)) for update in updates]
    return changed("receive", task, unpacked)
