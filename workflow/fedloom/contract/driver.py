"""Hold a plugin to every rule of the contract."""

import tempfile
from functools import partial
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.contract.checks import CHECKS, NotLearningError, TinyRun
from fedloom.contract.variations import other_options, refuses, shipped_backbone
from fedloom.hooks.hook_caller import guarded
from fedloom.hooks.manifest import Plugin

VARIATIONS = (other_options, shipped_backbone)


def check(plugin: Plugin, known: list[Plugin]) -> str:
    """Run every check; for a wrapper around every known method that it does not refuse.

    A wrapper that preserves the sum alone is not checked around methods that declare no
    aggregation. What is lost in compression or noise may be all that a method learns in the eight
    rounds of the check: the loss must fall around one method at least, and the others are named.

    Returns:
        What was done, in words.

    Raises:
        FedLoomError: the first check that fails, or raises anything, or a wrapper that refuses
            every method.
    """
    if plugin.kind == "method":
        _run_checks(plugin)
        return f"{len(CHECKS + VARIATIONS)} checks"
    methods = [m for m in known if m.kind == "method"]
    apart = [m for m in methods if m.refused_wrappers(m.options({}, m.name), [plugin])]
    around = [m for m in methods if m not in apart and not refusal(plugin, m)]
    if not around:
        raise FedLoomError(f"{plugin.name}: refuses every method there is")
    idle: list[str] = []
    for method in around:
        try:
            _run_checks(method, plugin)
        except NotLearningError:
            idle.append(method.name)
            if len(idle) == len(around):
                raise
    words = f"{len(CHECKS + VARIATIONS)} checks around {', '.join(m.name for m in around)}"
    if idle:
        words += f"; the loss does not fall in these few rounds around {', '.join(idle)}"
    if apart:
        names = ", ".join(m.name for m in apart)
        words += f"; not around {names}, which declare no aggregation"
    return words


def refusal(wrapper: Plugin, method: Plugin) -> str | None:
    """Return what a wrapper says to a method that it refuses, or None if it accepts the method.

    It may refuse at the start or, when it sees what the method uploads, in the first round.
    """
    with tempfile.TemporaryDirectory() as folder:
        # what is broken is no refusal
        made = partial(TinyRun, method, Path(folder), (wrapper,))
        run = guarded(made, [method, wrapper], "check TinyRun")
        try:
            start = run.start()
            task, updates = run.upload(1, start, run.task.data.participating[:3])
            run.aggregate(task, start.server, updates)
        except FedLoomError as error:
            if refuses([wrapper], error):
                return str(error)
    return None


def _run_checks(method: Plugin, *wrappers: Plugin) -> None:
    idle: NotLearningError | None = None
    for test in CHECKS + VARIATIONS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                call = partial(test, method, Path(folder), *wrappers)
                guarded(call, [method, *wrappers], f"check {test.__name__}")
            except NotLearningError as error:  # after the others, since a wrapper may be let off
                idle = error
    if idle is not None:
        raise idle
