import os
from importlib.util import find_spec

import one_node
import pytest
import tiny_study


@pytest.fixture(scope="session")
def slurm():
    """Yield a Slurm of one node; without the programs, tests are skipped, and in CI they fail."""
    plugins = ("snakemake_executor_plugin_slurm", "snakemake_executor_plugin_cluster_generic")
    lacking = [f"no {name}; pip install 'fedloom[test]'" for name in plugins if not find_spec(name)]
    reason = one_node.missing() or ", ".join(lacking)
    if reason and os.environ.get("FEDLOOM_CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    with one_node.running() as slurm:
        yield slurm


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Return a checkout in which data and caches are made, and nothing is trained."""
    return tiny_study.prepare(tmp_path_factory.mktemp("tiny") / "prepared")


@pytest.fixture(scope="session")
def straight(prepared, tmp_path_factory):
    """Return evaluations of runs that were never disturbed."""
    folder = tiny_study.copy(prepared, tmp_path_factory.mktemp("straight") / "checkout")
    return tiny_study.straight(folder)
