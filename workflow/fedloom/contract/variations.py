"""Checks beyond the defaults: other options, other cohorts, and the backbones that ship."""

import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.backbones import base
from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.config.reading import read
from fedloom.contract.tiny import CLIENTS, tiny_task
from fedloom.federated import checks as results
from fedloom.federated.evaluate import evaluate, evaluate_globally
from fedloom.federated.round import initial_state, train_round
from fedloom.hooks import loader
from fedloom.hooks.manifest import Plugin

DIRICHLET = {"scheme": "dirichlet", "kind": "client", "alpha": 0.5, "held_out": 0.2}
LIBRARIES = {"vit": "timm", "clip": "open_clip"}


def other_options(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that the method runs with other values of its options, on cohorts of other clients.

    One option is changed at a time: every other value of a list of values, a neighbour of a number.
    Values that the plugin refuses by a FedLoomError of its own are passed over, and those with
    which the method cannot have its wrappers.
    """
    for number, (changed, *around) in enumerate(_variations(method, *wrappers)):
        if changed.refused_wrappers(changed.options({}, changed.name), around):
            continue
        own = folder / str(number)
        own.mkdir()
        partition = DIRICHLET | {"clients": CLIENTS}
        try:
            _run(changed, own, around, partition, _cohort(number), seed=number)
        except FedLoomError as error:
            if not refuses([changed, *around], error):
                values = _differences(method, wrappers, changed, around)
                line = f"{error} (on cohorts of {_cohort(number)} clients{values})"
                raise FedLoomError(line) from error


def shipped_backbone(method: Plugin, folder: Path, *wrappers: Plugin) -> None:
    """Check that the method runs on the micro backbone that ships, whose shapes are other ones."""
    entries = read(ROOT / "config.yaml")["backbones"]
    library = LIBRARIES[str(method.family)]
    label, entry = next(
        (label, entry)
        for label, entry in entries.items()
        if entry["library"] == library and entry["weights"].startswith("workflow/resources")
    )
    settings = {key: value for key, value in entry.items() if key != "library"}
    backbone = base.load(str(method.family), settings)
    partition = {"scheme": "iid", "clients": CLIENTS, "held_out": 0.2}
    try:
        _run(method, folder, wrappers, partition, 3, backbone=backbone)
    except FedLoomError as error:
        raise FedLoomError(f"{error} (on the backbone {label})") from error


def _cohort(number: int) -> int:
    """Return how many clients take part in the variation `number`: first all, then one, two, ..."""
    return (number - 1) % (CLIENTS - 1) + 1


def _run(
    method: Plugin,
    folder: Path,
    wrappers: Any,
    partition: dict,
    clients: int,
    seed: int = 0,
    backbone: base.Backbone | None = None,
) -> None:
    """Train and evaluate a round."""
    task = tiny_task(method, folder, tuple(wrappers), partition, seed=seed, backbone=backbone)
    vars(task.training).update(epochs=1)
    task = replace(task, clients_per_round=clients, seed=seed)
    hooks = loader.load_hooks(method, wrappers=tuple(wrappers))
    state, _ = train_round(task.at(1), hooks, initial_state(task, hooks))
    evaluate(task.at(1), hooks, state)
    evaluate_globally(task.at(1), hooks, state)


def _variations(*plugins: Plugin) -> Iterator[list[Plugin]]:
    """Yield the plugins as they are, twice, then with one option of one of them changed.

    Around a method, wrappers' options are changed alone: the method's are by a check of its own.
    """
    yield from [list(plugins)] * 2
    for position, plugin in enumerate(plugins):
        if position == 0 and len(plugins) > 1:
            continue
        for name, option in plugin.option_schemas.items():
            for value in other_values(option):
                try:
                    plugin.options({name: value}, plugin.name)
                except FedLoomError:
                    continue  # out of bounds
                changed = plugin.with_defaults({name: value})
                yield [*plugins[:position], changed, *plugins[position + 1 :]]


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


def _differences(method: Plugin, wrappers: Any, changed: Plugin, around: list[Plugin]) -> str:
    """Return the option that was changed, in words."""
    for plugin, other in zip((method, *wrappers), (changed, *around), strict=True):
        before, after = plugin.options({}, plugin.name), other.options({}, plugin.name)
        for name, value in after.items():
            if value != before[name]:
                return f", with {plugin.name}'s option {name}: {value}"
    return ""


def refuses(plugins: list[Plugin], error: FedLoomError) -> bool:
    """Return True if one of the plugins raised the error itself, or what it called did."""
    if error.__cause__ is not None:  # an exception of another type, put into words
        return False
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    inside = any(
        str(plugin.folder.resolve()) in str(Path(f).resolve()) for plugin in plugins for f in files
    )
    return inside and Path(files[-1]).parent != Path(results.__file__).parent
