"""Updates of a head as a server gets them, and runs with wrappers."""

from dataclasses import replace

from fedloom.contract.tiny import tiny_task
from fedloom.contract.tiny_run import upload
from fedloom.federated.round import initial_state
from fedloom.hooks import loader, manifest
from fedloom.toolbox import Update


def wrapped_runs(tmp_path):
    """Return make(*wrappers, method, **options): a task and its hooks.

    The options are those of the first wrapper.
    """

    def make(*names, method="head_tuning", **options):
        plugin = manifest.find_method(method)
        around = tuple(manifest.find_method(name) for name in names)
        task = tiny_task(plugin, tmp_path, around)
        task = replace(task, secret=bytes(32))  # so that no test fails by chance
        vars(task.wrappers[names[0]]).update(options)
        return task, loader.load_hooks(plugin, wrappers=around)

    return make


def update(client, examples=1, received=None, **params):
    received = {"params": received or {}}
    metrics = {"train_loss": 0.0}
    return Update({"params": params}, {}, examples, metrics, client=client, received=received)


def sent_by(task, hooks, ids):
    """Return the task of round 1, and what clients send in it."""
    state = initial_state(task, hooks)
    return upload(task, hooks, 1, state, ids)
