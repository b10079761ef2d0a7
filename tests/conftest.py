import hypothesis
import pytest
import torch

from fedloom import contract
from fedloom.config import data_plugins
from fedloom.hooks import loader, manifest

# how long an example takes says more of what else the machine does
hypothesis.settings.register_profile("fedloom", deadline=None)
hypothesis.settings.load_profile("fedloom")


def pytest_collection_modifyitems(items):
    """The longest file first: beside it, the other worker runs all the rest."""
    items.sort(key=lambda item: item.path.name != "test_workflow.py")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def tiny(tmp_path):
    """tiny(name, **options): a task of milliseconds for a method, and its hooks."""

    def make(name: str, **options: object):
        method = manifest.find(name)
        return contract.tiny_task(method, tmp_path, **options), loader.load_hooks(method)

    return make


@pytest.fixture(autouse=True)
def fresh_plugins(request):
    """Forget discovered plugins around a test that may install some; discovery takes 50 ms."""
    changes = "monkeypatch" in request.fixturenames
    discoveries = (manifest.discover, data_plugins.discover) if changes else ()
    for discover in discoveries:
        discover.cache_clear()
    yield
    for discover in discoveries:
        discover.cache_clear()
