import logging
import signal
import sys

import hypothesis
import pytest

from fedloom.hooks import loader, manifest
from fedloom.machine import install
from plugin_finders import FINDERS, forget_plugins

# no deadline: other processes on the machine change how long an example takes
hypothesis.settings.register_profile("fedloom", deadline=None)
hypothesis.settings.load_profile("fedloom")

# the longest files, in this order; the first two wait for other processes half of their time
FIRST = (
    "test_workflow.py",
    "test_slurm.py",
    "test_contract.py",
    "test_examples.py",
    "test_example_methods.py",
    "test_example_wrappers.py",
    "test_installed_example.py",
    "test_report_browser.py",
    "test_docs.py",
    "test_site.py",
    "test_resources.py",
    "test_notebooks.py",
    "test_golden.py",
    "test_pretended_gpu.py",
    "test_wheel.py",
    "test_figures.py",
    "test_suits_gpus.py",
    "test_studies.py",
    "test_studies_of_papers.py",
)


def pytest_collection_modifyitems(items):
    """Begin with the longest files: while they take one worker each, the others run the rest."""
    items.sort(key=lambda i: FIRST.index(i.path.name) if i.path.name in FIRST else len(FIRST))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch  # here, so that the process that starts the workers need not import it

    torch.set_num_threads(1)


@pytest.fixture
def tiny(tmp_path):
    """Return tiny(name, **options): a task of milliseconds for a method, and its hooks."""

    from fedloom.contract.tiny import tiny_task

    def make(name: str, **options: object):
        method = manifest.find_method(name)
        return tiny_task(method, tmp_path, **options), loader.load_hooks(method)

    return make


def plugin_places() -> list:
    """Return the folders in which plugins are looked for."""
    folders = install.plugin_folders()
    return [*sys.path, *folders, *(finder.__wrapped__.__defaults__ for finder in FINDERS)]


class Patch(pytest.MonkeyPatch):
    def syspath_prepend(self, path: object) -> None:
        super().syspath_prepend(path)
        forget_plugins()

    def chdir(self, path: object) -> None:
        before = plugin_places()
        super().chdir(path)
        if plugin_places() != before:
            forget_plugins()


@pytest.fixture
def monkeypatch():
    """Yield pytest's `monkeypatch`; then forget the plugins that the test installed or moved."""
    before, patch = plugin_places(), Patch()
    yield patch
    moved = plugin_places() != before
    patch.undo()
    if moved:
        forget_plugins()


@pytest.fixture(autouse=True)
def usual_signals():
    """Give every test the default handler of SIGUSR1.

    Snakemake leaves the signal ignored in this process. Programs that a test starts would inherit
    that, and bash cannot trap a signal that was ignored when it started.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def usual_logging():
    """Take back what a test does to logging.

    A handler that a test leaves behind would write to the captured stream of that test, which is
    closed by then, so that later tests would print errors of logging.
    """
    root = logging.getLogger()
    ours = logging.getLogger("fedloom")
    handlers = list(root.handlers)
    root_level = root.level
    our_level = ours.level

    yield

    for handler in list(root.handlers):
        if handler not in handlers:
            root.removeHandler(handler)
    root.setLevel(root_level)
    ours.setLevel(our_level)
