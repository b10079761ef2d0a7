"""Hold a plugin to every rule of the contract, also with other options, cohorts and backbones."""

import logging
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedloom.backbones import base
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.config.reading import read
from fedloom.config.settings import FAMILIES
from fedloom.contract.checks import CHECKS, RULES, NotLearningError, TinyRun
from fedloom.contract.tiny import CLIENTS
from fedloom.federated import checks as results
from fedloom.federated.evaluate import evaluate, evaluate_globally
from fedloom.hooks.hook_caller import guarded
from fedloom.hooks.manifest import Plugin

log = logging.getLogger(__name__)
DIRICHLET = {"scheme": "dirichlet", "kind": "client", "alpha": 0.5, "held_out": 0.2}


def check(plugin: Plugin, known: list[Plugin]) -> str:
    """Run every check; for a wrapper around every known method that it does not refuse.

    A wrapper that preserves the sum alone is not checked around methods that declare no
    aggregation. Compression or noise may hide all learning in the eight rounds of the check: the
    loss must fall around one method at least, and the line that is returned names the others.
    """
    count = f"{len(RULES + CHECKS + VARIATIONS) - 1} checks"
    if plugin.kind == "method":
        _run_checks(plugin)
        return count
    methods = [m for m in known if m.kind == "method"]
    apart = [m for m in methods if m.refused_wrappers(m.options({}, m.name), [plugin])]
    around = [m for m in methods if m not in apart and not refusal(plugin, m)]
    if not around:
        raise FedLoomError(f"{plugin.name}: refuses every method there is")
    idle: list[str] = []
    for number, method in enumerate(around, 1):
        log.info("%s around %s: method %d/%d", plugin.name, method.name, number, len(around))
        try:
            _run_checks(method, plugin)
        except NotLearningError:
            idle.append(method.name)
            if len(idle) == len(around):
                raise
    words = f"{count} around {', '.join(m.name for m in around)}"
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
        # a broken plugin does not refuse
        made = partial(TinyRun, method, Path(folder), wrapper)
        run = guarded(made, [method, wrapper], "check TinyRun")
        try:
            run.aggregate(run.uploads[1])
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


def other_options(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that the method runs with other values of its options, on cohorts of other clients.

    One option is changed at a time: every other value of a list of values, a neighbour of a number.
    Values that the plugin itself refuses are passed over. All clients take part at first, then one,
    two, ...
    """
    for number, (words, changed, *around) in enumerate(_variations(method, *wrappers)):
        if changed.refused_wrappers(changed.options({}, changed.name), around):
            continue
        own, cohort = folder / str(number), (number - 1) % (CLIENTS - 1) + 1
        own.mkdir()
        partition = DIRICHLET | {"clients": CLIENTS}
        try:
            _run(TinyRun(changed, own, *around, partition=partition, seed=number), cohort, number)
        except FedLoomError as error:
            if not refuses([changed, *around], error):
                line = f"{error} (on cohorts of {cohort} clients{words})"
                raise FedLoomError(line) from error


def shipped_backbone(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that the method runs on the micro backbone that ships, whose shapes are other ones."""
    entries = read(ROOT / "config.yaml")["backbones"]
    label, entry = next(
        (label, entry)
        for label, entry in entries.items()
        if FAMILIES[entry["library"]] == method.family
        and entry["weights"].startswith("workflow/resources")
    )
    backbone = base.load(str(method.family), entry)
    partition = {"scheme": "iid", "clients": CLIENTS, "held_out": 0.2}
    try:
        _run(TinyRun(method, folder, *wrappers, partition=partition, backbone=backbone), 3)
    except FedLoomError as error:
        raise FedLoomError(f"{error} (on the backbone {label})") from error


VARIATIONS = (other_options, shipped_backbone)


def _run(run: TinyRun, clients: int, seed: int = 0) -> None:
    """Train and evaluate a round with this number of clients."""
    run.task = replace(run.task, clients_per_round=clients, seed=seed)
    evaluate(run.task.at(1), run.hooks, run.first)
    evaluate_globally(run.task.at(1), run.hooks, run.first)


def _variations(*plugins: Plugin) -> Iterator[list[Any]]:
    """Yield words and plugins: as they are, twice, then with one option of one of them changed.

    Around a method, wrappers' options are changed alone: another check changes the method's.
    """
    yield from [["", *plugins]] * 2
    for position, plugin in enumerate(plugins):
        if position == 0 and len(plugins) > 1:
            continue
        for name, option in plugin.option_schemas.items():
            for value in other_values(option):
                try:
                    plugin.options({name: value}, plugin.name)
                except FedLoomError:
                    continue  # out of bounds
                words = f", with {plugin.name}'s option {name}: {value}"
                changed = plugin.with_defaults({name: value})
                yield [words, *plugins[:position], changed, *plugins[position + 1 :]]


def other_values(option: dict[str, Any]) -> list[Any]:
    """Return values of an option's JSON Schema beside its default, some of them out of bounds."""
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


def refuses(plugins: list[Plugin], error: FedLoomError) -> bool:
    """Return True if one of the plugins raised the error itself, or what it called did."""
    if error.__cause__ is not None:  # an exception of another type, put into words
        return False
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    inside = any(
        str(plugin.folder.resolve()) in str(Path(f).resolve()) for plugin in plugins for f in files
    )
    return inside and Path(files[-1]).parent != Path(results.__file__).parent
