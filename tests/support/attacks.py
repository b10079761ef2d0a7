"""Runs in which some clients attack, and what they send."""

from fedloom.contract.tiny import tiny_task
from fedloom.contract.tiny_run import upload
from fedloom.federated.round import initial_state
from fedloom.hooks import loader, manifest

IDS = [1, 2, 3, 4, 5]  # the participating clients of the tiny task


def attacked_runs(tmp_path):
    """Return make(*wrappers, method, **options): a task and its hooks; two of five attack.

    The options are those of the first wrapper.
    """

    def make(*names, method="head_tuning", **options):
        plugin = manifest.find_method(method)
        around = tuple(manifest.find_method(name) for name in names)
        task = tiny_task(plugin, tmp_path, around)
        for name in names:
            if "share" in vars(task.wrappers[name]):
                task.wrappers[name].share = 0.4
        if names:
            vars(task.wrappers[names[0]]).update(options)
        return task, loader.load_hooks(plugin, wrappers=around)

    return make


def uploads(task, hooks):
    """Return what the participating clients send in round 1."""
    return upload(task, hooks, 1, initial_state(task, hooks), IDS)[1]


def heads(task, hooks):
    return {u.client: u.payload["params"]["head"] for u in uploads(task, hooks)}
