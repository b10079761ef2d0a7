"""What is wrong with a plugin's files is told in a line, and where tracebacks go."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from fedloom.common.errors import FedLoomError
from fedloom.contract.tiny import tiny_task
from fedloom.federated import round
from fedloom.hooks import loader, manifest
from fedloom.machine.install import ROOT
from fickle_run import Fickle, fickle_of, fickle_runs, write_fickle


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the run alone, and the run inside a wrapper."""
    return fickle_runs(tmp_path_factory)


@pytest.fixture
def fickle(runs, request):
    """Return a run, in a wrapper if the parameter `hook` is a wrapper's; it behaves at first."""
    return fickle_of(runs, request)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 +", r"plugin.py:1: SyntaxError: "),
        ("\nimport nothing_of_the_kind", "plugin.py:2: ModuleNotFoundError: No module named"),
        ("\n\nraise SystemExit('no')", "plugin.py:3: SystemExit: no"),
        ("from . import missing", "plugin.py:1: ImportError"),
    ],
)
def test_a_plugin_that_cannot_be_imported(tmp_path, source, words):
    plugin = write_fickle(tmp_path)["fickle"]
    plugin.file.write_text(source)
    with pytest.raises(FedLoomError, match=f"^fickle: import of plugin.py: .*{words}") as error:
        loader.load_hooks(plugin)
    assert "\n" not in str(error.value)


def test_a_wrapper_must_yield(tmp_path):
    folder = tmp_path / "plugins" / "dp_laplace"
    shutil.copytree(ROOT / "plugins/wrappers/dp_laplace", folder)
    text = (folder / "plugin.py").read_text()
    (folder / "plugin.py").write_text(text.replace("result = yield", "result = updates"))
    wrapper = manifest.discover_methods(tmp_path / "plugins")["dp_laplace"]
    method = manifest.find_method("pep_fedpt")
    with pytest.raises(FedLoomError, match=r"'aggregate' of a wrapper must .*yield once"):
        loader.load_hooks(method, wrappers=[wrapper])


def test_wrapper_and_method_are_told_apart(tmp_path):
    """An error names the plugin that raised an exception, but both plugins of a wrong result."""
    method = manifest.find_method("pep_fedpt")
    wrapper = manifest.find_method("dp_laplace")
    task = tiny_task(method, tmp_path, (wrapper,))
    hooks = loader.load_hooks(method, wrappers=[wrapper])
    current = round.initial_state(task, hooks)
    task.wrappers["dp_laplace"].eps = torch.nan
    with pytest.raises(
        FedLoomError, match=r"^pep_fedpt with dp_laplace: aggregate, round 1: .*fin"
    ):
        round.train_round(task.at(1), hooks, current)
    task.wrappers["dp_laplace"].eps = "much"
    with pytest.raises(FedLoomError, match=r"^dp_laplace: aggregate, round 1: .*laplace/plugin.py"):
        round.train_round(task.at(1), hooks, current)


def test_an_attribute_of_the_task_that_has_moved_is_told_with_its_new_place(tmp_path):
    run = Fickle(tmp_path)
    run.change["predict"] = lambda task, value: value[: task.prompts]
    with pytest.raises(FedLoomError, match=r"^fickle: predict.* task.prompts is now task.declared"):
        run.run()


SCRIPT = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from fedloom.machine.process_log import log_to
from fedloom.common.errors import FedLoomError
from fickle_run import Fickle
log_to(Path("job.log"))
run = Fickle(Path())
run.change["predict"] = lambda task, value: value[99]
try:
    run.run()
except FedLoomError as error:
    print(f"error: {error}", file=sys.stderr)
run.change["predict"] = lambda task, value: os.abort()
run.run()
"""


def test_a_traceback_is_in_the_log_file_alone_and_the_end_of_a_process_too(tmp_path):
    folders = [ROOT / "tests/hooks", ROOT / "tests/support"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *folders],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "workflow")},
        timeout=120,
    )
    log = (tmp_path / "job.log").read_text()
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: fickle: predict, round 1, clients 0, 1")
    assert "Traceback" not in done.stderr
    assert "Traceback (most recent call last)" in log and "\nIndexError: index 99" in log
    assert done.returncode not in (0, 1) and "Fatal Python error: Aborted" in log
    assert "plugin.py" in log.split("Fatal Python error")[1], "the stack names file and line"
