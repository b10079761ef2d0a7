"""Hold a plugin to every rule of the contract."""

import tempfile
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.methods.contract.checks import CHECKS, TinyRun
from fedloom.methods.manifest import Plugin


def check(plugin: Plugin, known: list[Plugin]) -> str:
    """Run every check; for a wrapper around every known method that it does not refuse.

    Returns:
        What was done, in words.

    Raises:
        FedLoomError: the first check that fails, or a wrapper that refuses every method.
    """
    if plugin.kind == "method":
        _run_checks(plugin)
        return f"{len(CHECKS)} checks"
    around = [m for m in known if m.kind == "method" and not refusal(plugin, m)]
    if not around:
        raise FedLoomError(f"{plugin.name}: refuses every method there is")
    for method in around:
        _run_checks(method, plugin)
    return f"{len(CHECKS)} checks around {', '.join(m.name for m in around)}"


def refusal(wrapper: Plugin, method: Plugin) -> str | None:
    """Return what a wrapper says to a method that it refuses, or None if it accepts the method."""
    with tempfile.TemporaryDirectory() as folder:
        run = TinyRun(method, Path(folder), (wrapper,))  # what is broken is no refusal
        try:
            run.start()
        except FedLoomError as error:
            return str(error)
    return None


def _run_checks(method: Plugin, *wrappers: Plugin) -> None:
    for test in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            test(method, Path(folder), *wrappers)
