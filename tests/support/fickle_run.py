"""A fickle method, ready to train."""

import shutil
import sys
from dataclasses import replace
from itertools import count

import pytest
import torch

from fedloom.common.errors import FedLoomError
from fedloom.contract.tiny import tiny_job, tiny_outputs, tiny_task
from fedloom.federated import evaluate, round, training_job
from fedloom.hooks import hookspecs, loader, manifest
from fedloom.machine.install import ROOT

NAN = torch.nan
HOOKS = loader.HOOKS
NUMBERS = count()


def write_fickle(folder):
    """Write fickle.py of tests/support as a plugin, and fickle_wrapper.py as one around it."""
    toml = (ROOT / "plugins/methods/head_tuning/method.toml").read_text()
    toml = toml.replace('name = "head_tuning"', 'name = "fickle"')
    around = "kind = 'wrapper'\nname = 'around'\ntitle = 'A'\n[paper]\ncitation = 'C'\n"
    for name, source, text in (
        ("fickle", "fickle.py", f"{toml}\n[artefacts.norms]\ndescription = 'of the head'\n"),
        ("around", "fickle_wrapper.py", around),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "method.toml").write_text(text)
        shutil.copy(ROOT / "tests/support" / source, folder / name / "plugin.py")
    return manifest.discover_methods(folder)


class Fickle:
    """A run of fickle.py, alone or wrapped: two rounds, each evaluated, and an artefact."""

    def __init__(self, folder, wrapped=False):
        plugins = write_fickle(folder / "plugins")
        around = [plugins["around"]] if wrapped else []
        plugin = plugins["around" if wrapped else "fickle"]
        self.folder = folder
        self.file = plugin.file
        self.method = plugins["fickle"]
        self.hooks = loader.load_hooks(self.method, wrappers=around)
        self.task = tiny_task(self.method, folder, tuple(around))
        self.change = sys.modules[f"{plugin.package}.plugin"].CHANGE

    def run(self):
        two = replace(tiny_job(self.method, last=2), evaluated_rounds=(1, 2))
        folder = self.folder / f"run{next(NUMBERS)}"  # else it would resume from a checkpoint
        folder.mkdir()
        outputs = tiny_outputs(folder, 2)
        training_job.train_rounds(self.task, self.hooks, two, None, outputs, "same")
        current = round.initial_state(self.task, self.hooks)
        return evaluate.compute_artefact(self.task.at(2), self.hooks, current, "norms")

    def complaint(self):
        with pytest.raises(FedLoomError) as error:
            self.run()
        line = str(error.value)
        assert "\n" not in line
        return line


def fickle_runs(tmp_path_factory):
    """Return a run of the method alone and one in a wrapper, by whether it is wrapped."""
    return {wrapped: Fickle(tmp_path_factory.mktemp("run"), wrapped) for wrapped in (False, True)}


def fickle_of(runs, request):
    """Return a run that behaves at first, wrapped if the test's `hook` is one of wrappers."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    run = runs[parameters.get("hook") in hookspecs.UNPACKING]
    run.change.clear()
    return run
