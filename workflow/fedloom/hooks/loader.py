"""Register the hooks of a run's plugins."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pluggy

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.hooks import defaults, hookspecs
from fedloom.hooks.hook_caller import Hooks
from fedloom.hooks.importing import import_anew
from fedloom.hooks.manifest import Plugin

HOOKS = tuple(name for name, f in vars(hookspecs).items() if hasattr(f, "fedloom_spec"))


def check_hooks(module: ModuleType, plugin: Plugin) -> None:
    """Refuse mistakes that pluggy lets pass, or refuses with a traceback."""
    file, kind = plugin.file, plugin.kind
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: f for name, f in functions if f.__module__ == module.__name__}
    for name, function in own.items():
        marked = hasattr(function, "fedloom_impl")
        if name in HOOKS and not marked:
            raise FedLoomError(f"{file}: '{name}' has a hook's name but no @hookimpl above it")
        if marked and name not in HOOKS:
            hint = suggestion(name, HOOKS)
            raise FedLoomError(f"{file}: '{name}' is not a hook; {hint}")
        if marked:
            _check_hook(name, function, file, kind)
    for name in hookspecs.REQUIRED if kind == "method" else ():
        if name not in own:
            raise FedLoomError(f"{file}: the required hook '{name}' is missing")
    if kind == "method" and "aggregate" not in own and plugin.aggregation is None:
        raise FedLoomError(
            f"{file}: the hook 'aggregate' is missing; write it, or let method.toml declare which "
            'mean the server takes: aggregation = "weighted" or "plain"'
        )


def _check_hook(name: str, function: Any, file: Path, kind: str) -> None:
    """Check how one hook is marked and written, and its arguments."""
    wraps = kind == "wrapper"
    if name in hookspecs.UNPACKING and not wraps:
        instead = {"receive": "aggregate", "deliver": "client_update and predict"}[name]
        raise FedLoomError(f"{file}: '{name}' is a hook of wrappers; do this in {instead}")
    marks = {mark for mark, value in function.fedloom_impl.items() if value}
    if marks != ({"wrapper"} if wraps else set()):
        mark = "@hookimpl(wrapper=True)" if wraps else "plain @hookimpl"
        raise FedLoomError(f"{file}: '{name}' of a {kind} needs {mark} above it")
    if inspect.isgeneratorfunction(function) != wraps:
        rule = "must yield once, for what the method gives" if wraps else "must return, not yield"
        raise FedLoomError(f"{file}: '{name}' of a {kind} {rule}")
    allowed = set(inspect.signature(getattr(hookspecs, name)).parameters)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            raise FedLoomError(
                f"{file}: hook '{name}' gives '{parameter.name}' a default, which pluggy "
                "would never override; remove it"
            )
        if parameter.name not in allowed:
            raise FedLoomError(
                f"{file}: hook '{name}' has no argument '{parameter.name}'; "
                + suggestion(parameter.name, allowed)
            )


def load_hooks(plugin: Plugin, wrappers: Sequence[Plugin] = ()) -> Hooks:
    """Return the hooks of one run: the method's, defaults where it has none, and its wrappers'."""
    plugins = (plugin, *wrappers)
    modules = import_anew(plugins)
    for each, module in zip(plugins, modules, strict=True):
        check_hooks(module, each)
    behind = {name: getattr(defaults, name) for name in HOOKS if hasattr(defaults, name)}
    if hasattr(modules[0], "aggregate"):  # if it lacks a `return`, the default would replace it
        del behind["aggregate"]
    packing = _relay(SimpleNamespace(**behind), *modules)
    unpacking = _relay(SimpleNamespace(**behind), *reversed(modules))
    return Hooks(packing, unpacking, plugins)


def _relay(*modules: object) -> pluggy.HookRelay:
    """Register the modules in this order: the last is asked first, or wraps the rest."""
    manager = pluggy.PluginManager("fedloom")
    manager.add_hookspecs(hookspecs)
    for module in modules:
        manager.register(module)
    return manager.hook
