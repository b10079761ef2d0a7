"""Import a run's plugins and register their hooks."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from fedloom.common import schema
from fedloom.common.errors import FedLoomError
from fedloom.methods import hookspecs
from fedloom.methods.calls import Hooks, blame
from fedloom.methods.manifest import Located, Plugin

HOOKS = tuple(name for name, f in vars(hookspecs).items() if hasattr(f, "fedloom_spec"))
PACKAGE = "fedloom_plugins"  # the package that stands for plugins/ of the checkout


def import_plugin(plugin: Located) -> ModuleType:
    """Import a plugin's plugin.py as a module of a package, so that `from . import x` works.

    A folder of the checkout becomes the package `fedloom_plugins.<name>`; an installed one keeps
    its own name.

    Raises:
        FedLoomError: the import raises, or ends the process.
    """
    try:
        return _import(plugin)
    except FedLoomError:
        raise
    except (Exception, SystemExit) as error:
        raise blame([plugin], error, "import of plugin.py") from error


def _import(plugin: Located) -> ModuleType:
    """Import plugin.py, with whatever it raises."""
    if plugin.module is not None:
        return importlib.import_module(f"{plugin.module}.plugin")
    name = f"{PACKAGE}.{plugin.name}"
    for package, folder in ((PACKAGE, plugin.folder.parent), (name, plugin.folder)):
        spec = importlib.machinery.ModuleSpec(package, loader=None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    for module in [m for m in sys.modules if m.startswith(f"{name}.")]:
        del sys.modules[module]  # another folder's plugin of this name, in the same process
    return importlib.import_module(f"{name}.plugin")


def check_hooks(module: ModuleType, file: Path, kind: str) -> None:
    """Refuse mistakes that pluggy lets pass, or refuses with a traceback.

    Raises:
        FedLoomError: a hook is missing, misspelt, unmarked or has an argument that it may not have.
    """
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: f for name, f in functions if f.__module__ == module.__name__}
    for name, function in own.items():
        marked = hasattr(function, "fedloom_impl")
        if name in HOOKS and not marked:
            raise FedLoomError(f"{file}: '{name}' has a hook's name but no @hookimpl above it")
        if marked and name not in HOOKS:
            hint = schema.suggestion(name, list(HOOKS))
            raise FedLoomError(f"{file}: '{name}' is no hook; {hint}")
        if marked:
            _check_hook(name, function, file, kind)
    for name in hookspecs.REQUIRED if kind == "method" else ():
        if name not in own:
            raise FedLoomError(f"{file}: the required hook '{name}' is missing")


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
                + schema.suggestion(parameter.name, list(allowed))
            )


def load_hooks(plugin: Plugin, *defaults: object, wrappers: Sequence[Plugin] = ()) -> Hooks:
    """Return the hooks of one run: the method's, `defaults` where it has none, and its wrappers'.

    Raises:
        FedLoomError: a plugin cannot be imported, or a hook is missing, misspelt, unmarked or has
            a wrong argument.
    """
    modules = []
    for each in (plugin, *wrappers):
        modules.append(import_plugin(each))
        check_hooks(modules[-1], each.file, each.kind)
    packing = _relay(*defaults, *modules)
    unpacking = _relay(*defaults, *reversed(modules))
    return Hooks(packing, unpacking, (plugin, *wrappers))


def _relay(*modules: object) -> pluggy.HookRelay:
    """Register the modules in this order: the last is asked first, or wraps the rest."""
    manager = pluggy.PluginManager("fedloom")
    manager.add_hookspecs(hookspecs)
    for module in modules:
        manager.register(module)
    return manager.hook
