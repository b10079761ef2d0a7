"""benchmarks/gpu.py runs where there is no GPU, so that it is ready where there is one."""

import importlib
import sys

import pytest

from fedloom.common.checkout import ROOT


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(ROOT)
    return importlib.import_module("gpu")


@pytest.mark.parametrize("method", ["fedvpt", "fedpha"])
def test_a_small_round_is_timed_and_its_operations_are_counted(
    benchmark, monkeypatch, capsys, method
):
    """Two images of micro size a client."""
    monkeypatch.setattr(benchmark, "SMALL", {"images": 2, "batch": 2, "epochs": 1})
    arguments = ["gpu.py", "--small", "--rounds", "1", "--methods", method]
    monkeypatch.setattr(sys, "argv", arguments)
    benchmark.main()
    name, first, later, evaluation, count, *_ = (
        capsys.readouterr().out.splitlines()[-1].split("|")[1:]
    )
    assert name.strip() == method
    assert all(float(seconds) > 0 for seconds in (first, later, evaluation))
    assert float(count) > 0
