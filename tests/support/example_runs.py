"""Runs of the methods and wrappers of examples/."""

import torch

from fedloom.contract.tiny import tiny_task
from fedloom.hooks import loader, manifest
from fedloom.machine.install import ROOT
from fedloom.toolbox import Update

FOLDER = ROOT / "examples/methods"


EXAMPLES = {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/plugin.py"))}


def plugin(name):
    return manifest.discover_methods(FOLDER)[name]


def runs_of_examples(tmp_path):
    """Return make(name, **options): a task and hooks of an example.

    Wrappers lie around Head-Tuning by default.
    """

    def make(name, around="head_tuning", **options):
        own = plugin(name)
        if own.kind == "method":
            task = tiny_task(own, tmp_path, **options)
            return task, loader.load_hooks(own)
        method = manifest.find_method(around)
        task = tiny_task(method, tmp_path, (own,))
        vars(task.wrappers[name]).update(options)
        return task, loader.load_hooks(method, wrappers=(own,))

    return make


def update(client, **params):
    return Update({"params": params}, {}, 1, {"train_loss": 0.0}, client=client)


def changed(before, after):
    return not torch.equal(before, after)
