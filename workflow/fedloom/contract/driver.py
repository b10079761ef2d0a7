"""Run all checks of the contract on a plugin, also with other options and other cohorts."""

import logging
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict, JsonValue
from fedloom.contract import checks
from fedloom.contract.checks import NotLearningError
from fedloom.contract.deterministic import DeterministicOnly
from fedloom.contract.tiny import TINY_CLIENTS
from fedloom.contract.tiny_run import TinyRun
from fedloom.federated import check_results
from fedloom.federated.evaluate import evaluate
from fedloom.hooks.manifest import MethodManifest
from fedloom.hooks.plugin_code import run_plugin_code
from fedloom.hooks.wrapper_rules import refused_wrappers

log = logging.getLogger(__name__)
DIRICHLET = dict(scheme="dirichlet", kind="client", clients=TINY_CLIENTS, alpha=0.5, held_out=0.2)


def check(plugin: MethodManifest, known: list[MethodManifest]) -> str:
    """Run every check on a plugin; return a line that says what was checked.

    A wrapper is checked around every method in `known` that it can be combined with. Compression or
    noise may hide all learning in the eight rounds of the check. So it is enough if the loss falls
    around one of the methods. The returned line names the methods around which it does not fall.

    Raises:
        FedLoomError: the plugin breaks a rule, or a wrapper refuses every method.
    """
    # `keeps_rules` runs all RULES; count each of them instead of it
    count = f"{len(checks.RULES + CHECKS) - 1} checks"
    if plugin.kind == "method":
        _run_checks(plugin)
        return count

    # for a wrapper, take the methods whose method.toml allows it and which it does not refuse
    methods = [m for m in known if m.kind == "method"]
    fit = [m for m in methods if not refused_wrappers(m, m.complete_options({}), [plugin])]
    around = [m for m in fit if not refusal(plugin, m)]
    if not around:
        raise FedLoomError(f"{plugin.name}: refuses every method there is")

    # it is enough if the loss falls around one method
    idle: list[str] = []
    for number, method in enumerate(around, 1):
        log.info("%s around %s: method %d/%d", plugin.name, method.name, number, len(around))
        try:
            _run_checks(method, plugin)
        except NotLearningError:
            idle.append(method.name)
            if len(idle) == len(around):
                raise

    line = f"{count} around {', '.join(m.name for m in around)}"
    if idle:
        line += f"; the loss does not fall in these few rounds around {', '.join(idle)}"
    return line


def refusal(wrapper: MethodManifest, method: MethodManifest) -> str | None:
    """Return the error with which a wrapper refuses a method; None if it trains the first round.

    An error that is not a refusal is not returned either: a later check finds it.
    """
    with tempfile.TemporaryDirectory() as folder:
        # a plugin that cannot even start is broken, which is not a refusal
        made = partial(TinyRun, method, Path(folder), wrapper)
        run = run_plugin_code(made, [method, wrapper], "start")

        try:
            run.aggregate(run.uploads[1])
        except FedLoomError as error:
            if refuses([wrapper], error):
                return str(error)
    return None


def _run_checks(method: MethodManifest, *wrappers: MethodManifest) -> None:
    """Run CHECKS on a method with these wrappers, each check in a folder of its own."""
    # `learns` comes last, because a wrapper may fail it without being wrong
    for test in sorted(CHECKS, key=lambda test: test is checks.learns):
        with tempfile.TemporaryDirectory() as folder:
            call = partial(test, method, Path(folder), *wrappers)
            run_plugin_code(call, [method, *wrappers], f"check {test.__name__}")


def other_options(method: MethodManifest, folder: Path, *wrappers: MethodManifest) -> None:
    """Check that the method runs with other values of its options, on cohorts of other clients.

    One option is changed at a time. A value that a plugin itself refuses is skipped. The first run
    has all clients in its cohort, and the following ones have one, two, ...
    """
    for number, (words, changed, around) in enumerate(_variations(method, *wrappers)):
        # with another value of an option, the method may refuse its wrappers
        if refused_wrappers(changed, changed.complete_options({}), around):
            continue

        # all clients in the first run of this loop, then one, two, ...
        own = folder / str(number)
        cohort = (number - 1) % (TINY_CLIENTS - 1) + 1
        own.mkdir()
        try:
            run = TinyRun(changed, own, *around, partition=DIRICHLET, seed=number)
            run.task = replace(run.task, clients_per_round=cohort, seed=number)
            with DeterministicOnly():
                evaluate(run.task.at(1), run.hooks, run.first, global_test=True)
        except FedLoomError as error:
            if not refuses([changed, *around], error):
                raise FedLoomError(f"{error} (on cohorts of {cohort} clients{words})") from error


CHECKS = (*checks.CHECKS, other_options)


class _Variation(NamedTuple):
    """A method and wrappers to check, and the words with which an error describes their options."""

    words: str
    method: MethodManifest
    wrappers: list[MethodManifest]


def _variations(method: MethodManifest, *wrappers: MethodManifest) -> Iterator[_Variation]:
    """Yield the plugins unchanged, twice, and then with one option changed at a time."""
    unchanged = _Variation("", method, [*wrappers])
    yield unchanged
    yield unchanged

    # with wrappers, change only their options: the method's own check changes the method's options
    plugins = [method, *wrappers]
    first = 1 if wrappers else 0
    for position in range(first, len(plugins)):
        plugin = plugins[position]
        for name, option in plugin.option_schemas.items():
            for value in other_values(option):
                # skip a value that is out of bounds
                try:
                    plugin.complete_options({name: value})
                except FedLoomError:
                    continue

                changed = [*plugins]
                changed[position] = plugin.with_defaults({name: value})
                words = f", with {plugin.name}'s option {name}: {value}"
                yield _Variation(words, changed[0], changed[1:])


def other_values(option: JsonDict) -> list[JsonValue]:
    """Return values of an option other than its default; some of them may be out of bounds.

    `option` is the option's JSON Schema.
    """
    default = option["default"]
    if "enum" in option:
        return [value for value in option["enum"] if value != default]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1, default - 1]
    if isinstance(default, float):
        return [default / 2, (default + 1) / 2]
    return []


def refuses(plugins: list[MethodManifest], error: FedLoomError) -> bool:
    """Return True if the error is a refusal, which one of the plugins raised on purpose."""
    # an error with a cause was an exception of another type, which is a fault and not a refusal
    if error.__cause__ is not None:
        return False

    # the error passed through a plugin's code, and did not arise in the check of a hook's result
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    folders = [plugin.folder.resolve() for plugin in plugins]
    for file in files:
        if any(Path(file).resolve().is_relative_to(own) for own in folders):
            return files[-1] != check_results.__file__
    return False
