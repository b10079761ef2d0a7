"""What the labels of methods mean: plugins with their options, and grids of them."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.config import grids
from fedloom.config.reading import CONFIG
from fedloom.config.settings import Backbone, Grid, GridMember, Method, Wrapper
from fedloom.config.study import MethodEntry, Study, WrapperEntry
from fedloom.hooks import compatibility
from fedloom.hooks.manifest import Found, Plugin, discover, find
from fedloom.hooks.training import Training


def implied(labels: list[str], methods: dict[str, MethodEntry]) -> dict[str, MethodEntry]:
    """Return entries for the selected labels that are names of plugins and defined nowhere."""
    plugins = discover()
    return {
        label: MethodEntry(plugin=label)
        for label in labels
        if label not in methods
        and (label in plugins.broken or (label in plugins and plugins[label].kind == "method"))
    }


def resolve_methods(
    methods: dict[str, MethodEntry], training: Training
) -> tuple[Found[Method], dict[str, Grid]]:
    """Return the methods by label, members of grids among them, and the grids by label.

    A label of a broken plugin is broken too.

    Args:
        methods: the config's section.
        training: the study's training options.

    Raises:
        FedLoomError: no such plugin, option or value, or a grid that is none.
    """
    resolved: Found[Method] = Found()
    all_grids: dict[str, Grid] = {}
    for label, entry in methods.items():
        where = f"{CONFIG} methods.{label}"
        for name in (entry.plugin, *(around.plugin for around in entry.wrappers)):
            if name in discover().broken:
                resolved.broken[label] = discover().broken[name]
        if label in resolved.broken:
            continue
        plugin = find(entry.plugin, f"{where}.plugin", "method")
        around, wrappers = _wrappers(entry.wrappers, where)
        options = plugin.options(entry.options, f"{where}.options")
        title = entry.title or (plugin.title if label == plugin.name else label)

        def method(
            name: str, title: str, options: dict, member: GridMember | None = None,
            plugin: Plugin = plugin, wrappers: tuple = wrappers, entry: MethodEntry = entry,
        ) -> Method:  # fmt: skip
            swept = grids.of_training(member.options) if member else {}
            own = entry.training.given | swept
            return Method(
                label=name,
                plugin=plugin.name,
                title=title,
                options=options,
                training=plugin.training(training.given, own),
                wrappers=wrappers,
                families=plugin.families,
                needs=plugin.needs,
                artefacts=tuple(plugin.artefacts_with(options)),
                look=cast(dict[str, str], plugin.look),
                own_training=own,
                rounds=entry.rounds,
                member=member,
            )

        if entry.grid is None:
            added = {label: method(label, title, options)}
        else:
            own = plugin.training(training.given, entry.training.given)
            at = f"{where}.grid"
            grid = grid_of(label, title, entry.grid, options, own, plugin, at)
            all_grids[label] = grid
            added = {}
            for name, member_title, member in grids.members(grid):
                if name in added:
                    line = f"{where}.grid: '{name}' is another combination too"
                    raise FedLoomError(f"{line}; leave one of them out")
                swept = grids.of_method(member.options)
                checked = plugin.options(options | swept, f"{where}.grid")
                added[name] = method(name, member_title, checked, member)
        for name, each in added.items():
            reason = compatibility.refusal(plugin, each.options, around)
            if reason is not None:
                raise FedLoomError(f"{where}.wrappers: {reason}")
            if name in resolved or (name != label and name in methods):
                line = f"{where}.grid: '{name}' is another label too"
                raise FedLoomError(f"{line}; leave one of them out")
        resolved |= added
    return resolved, all_grids


def _wrappers(
    entries: list[WrapperEntry], where: str
) -> tuple[tuple[Plugin, ...], tuple[Wrapper, ...]]:
    """Check a label's wrappers, and return their plugins and their options, filled in."""
    names = [entry.plugin for entry in entries]
    if len(set(names)) < len(names):
        raise FedLoomError(f"{where}.wrappers: a wrapper stands there twice; name each once")
    plugins, wrappers = [], []
    for i, entry in enumerate(entries):
        plugin = find(entry.plugin, f"{where}.wrappers[{i}].plugin", "wrapper")
        options = plugin.options(entry.options, f"{where}.wrappers[{i}].options")
        plugins.append(plugin)
        wrappers.append(Wrapper(plugin.name, options))
    return tuple(plugins), tuple(wrappers)


def grid_of(
    label: str,
    title: str,
    axes: dict[str, list],
    options: dict[str, Any],
    training: dict[str, Any],
    plugin: Plugin,
    where: str,
) -> Grid:
    """Return a grid, once its axes are checked.

    Args:
        options, training: the label's, all of them filled in.

    Raises:
        FedLoomError: an axis is no option, or a value none that it takes; names `where`.
    """
    every = dict.fromkeys(Training.model_fields) | training
    options = options | {f"{grids.TRAINING}{name}": value for name, value in every.items()}
    grids.check_axes(axes, options, plugin.option_schemas, where)
    touched = dict.fromkeys(grids.split(axis)[0] for axis in axes)
    return Grid(
        label=label,
        title=title,
        axes=tuple((axis, values) for axis, values in axes.items()),
        options=tuple((option, options[option]) for option in touched),
    )


def method_names(methods: dict[str, Method], all_grids: dict[str, Grid]) -> list[str]:
    """List what a study may call methods: labels, and grids in place of their members."""
    return [k for k, method in methods.items() if method.member is None] + [*all_grids]


def expand(
    names: list[str], methods: Found[Method], all_grids: dict[str, Grid], where: str
) -> list[str]:
    """Return the labels that `names` stand for: all members of a grid by its own label.

    Raises:
        FedLoomError: no such label, or one of a broken plugin.
    """
    labels: dict[str, None] = {}
    for name in names:
        if name in all_grids:
            labels |= dict.fromkeys(label for label, *_ in grids.members(all_grids[name]))
        elif name in methods.broken:
            raise methods.broken[name]
        elif name in methods:
            labels[name] = None
        else:
            hint = suggestion(name, method_names(methods, all_grids))
            raise FedLoomError(f"{where}: no label '{name}'; {hint}")
    return list(labels)


def check_families(methods: Iterable[Method], backbones: Sequence[Backbone], where: str) -> None:
    """Check that every method of a table or figure works on every backbone of it.

    Args:
        where: how an error names the table or figure.

    Raises:
        FedLoomError: names the method and the backbone.
    """
    for method in methods:
        for backbone in backbones:
            if backbone.family not in method.families:
                raise FedLoomError(
                    f"{where}: methods.{method.label} works on a {' or '.join(method.families)}, "
                    f"backbones.{backbone.label} is a {backbone.family}; show them in different "
                    "tables or figures (methods, backbones)"
                )


def check_parts(methods: Iterable[Method], study: Study) -> None:
    """Check that every method allows its batches and cohorts to be divided as the study does.

    Raises:
        FedLoomError: names the method, and what to change.
    """
    for method in methods:
        size = method.training["micro_batch"]
        reason = find(method.plugin).refused_parts(method.options, size, study.stacked)
        if reason is not None:
            raise FedLoomError(f"{CONFIG} methods.{method.label}: {reason}")
