"""Import a run's plugins and register their hooks."""

import ast
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pluggy

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.folders import read_text
from fedloom.hooks import defaults, hookspecs
from fedloom.hooks.discovery import PACKAGE, Located
from fedloom.hooks.hook_caller import Hooks, guarded
from fedloom.hooks.manifest import Plugin

HOOKS = tuple(name for name, f in vars(hookspecs).items() if hasattr(f, "fedloom_spec"))


def import_plugin(plugin: Located) -> ModuleType:
    """Import a plugin's plugin.py as a module of a package, so that `from . import x` works.

    If it was imported before, this is the same module.
    """
    module = sys.modules.get(f"{plugin.package}.plugin")
    if module is not None and module.__file__ == str(plugin.file):
        return module
    return _import_anew([plugin])[0]


def _import_anew(plugins: Sequence[Located]) -> list[ModuleType]:
    """Import the plugins and the modules that they share, whether they were imported or not.

    A plugin is to hold nothing between jobs, and two folders may have plugins of one name.
    """
    for plugin in plugins:
        _forget(plugin)
    return [
        guarded(partial(_import_module, plugin), [plugin], "import of plugin.py")
        for plugin in plugins
    ]


def _import_module(plugin: Located) -> ModuleType:
    if plugin.module is None:
        _check_imports(plugin)
        folders = {PACKAGE: plugin.folder.parent, plugin.package: plugin.folder}
        for package, folder in folders.items():
            spec = importlib.machinery.ModuleSpec(package, loader=None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
            sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{plugin.package}.plugin")


def _forget(plugin: Located) -> None:
    """Remove a plugin's modules, so that an import runs them again.

    Of an installed plugin, those of its whole top-level package, which it may share with others;
    but compiled ones stay, since Python cannot load them twice.
    """
    package = plugin.package if plugin.module is None else plugin.module.partition(".")[0]
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        if (getattr(sys.modules[name], "__file__", None) or ".py").endswith(".py"):
            del sys.modules[name]


def _check_imports(plugin: Located) -> None:
    """Refuse a plugin of `plugins/` that imports another one, on whose files no run depends."""
    for file in sorted(plugin.folder.rglob("*.py")):
        inside = len(file.relative_to(plugin.folder).parts)  # levels up to the plugin's own package
        for node in ast.walk(ast.parse(read_text(file), str(file))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
                if node.level > inside:
                    names = [PACKAGE]
            if any(name.split(".")[0] == PACKAGE for name in names):
                line = getattr(node, "lineno", 0)
                raise FedLoomError(
                    f"{file}: line {line} imports another plugin; copy what it needs into its own "
                    "folder, or propose it for fedloom.toolbox"
                )


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
    modules = _import_anew(plugins)
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
