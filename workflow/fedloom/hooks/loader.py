"""Import plugin.py of plugins of any kind, without torch, and call the hooks of a run.

An exception in a plugin becomes one line that says where it arose.
"""

import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pluggy

from fedloom.common.errors import FedLoomError, in_words, suggestion
from fedloom.common.ids import SERVER_MODEL
from fedloom.hooks import hookspecs
from fedloom.hooks.discovery import PACKAGE, Located
from fedloom.hooks.manifest import Plugin

log = logging.getLogger(__name__)

MOST = 6  # clients that are named in an error
# modules that plugins may import, by the names that they had before 2026-11-27
MOVED = {
    "fedloom.data.toolbox": "fedloom.data.source_toolbox",
    "fedloom.report.toolbox": "fedloom.report.output_toolbox",
}
Result = TypeVar("Result")
HOOKS = tuple(name for name, f in vars(hookspecs).items() if hasattr(f, "fedloom_spec"))


def import_plugin(plugin: Located) -> ModuleType:
    """Return a plugin's plugin.py, imported as a module of a package for `from . import x`."""
    module = sys.modules.get(f"{plugin.package}.plugin")
    if module is not None and module.__file__ == str(plugin.file):
        return module
    return import_anew([plugin])[0]


def import_anew(plugins: Sequence[Located]) -> list[ModuleType]:
    """Import the plugins and the modules that they share, whether they were imported or not.

    A plugin is to hold nothing between jobs, and two folders may have plugins of one name. Of an
    installed plugin, the whole top-level package is imported anew, but no compiled module, which
    Python cannot load twice.
    """
    for plugin in plugins:
        package = plugin.package if plugin.module is None else plugin.module.partition(".")[0]
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
            if (getattr(sys.modules[name], "__file__", None) or ".py").endswith(".py"):
                del sys.modules[name]
    imports = [(plugin, partial(_import_module, plugin)) for plugin in plugins]
    return [guarded(call, [plugin], "import of plugin.py") for plugin, call in imports]


def _import_module(plugin: Located) -> ModuleType:
    if plugin.module is None:
        # the package of all plugins has no folder: none imports another, on whose files no run
        # depends
        for package, folders in {PACKAGE: [], plugin.package: [str(plugin.folder)]}.items():
            spec = importlib.machinery.ModuleSpec(package, loader=None, is_package=True)
            spec.submodule_search_locations = folders
            sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module(f"{plugin.package}.plugin")
    except ModuleNotFoundError as error:
        moved_to = MOVED.get(error.name or "")
        if moved_to is None:
            raise
        line = f"{plugin.file}: imports {error.name}, which is now {moved_to}; import that"
        raise FedLoomError(line) from error


def check_hooks(module: ModuleType, plugin: Plugin) -> None:
    """Refuse mistakes that pluggy lets pass, or refuses with a traceback."""
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: f for name, f in functions if f.__module__ == module.__name__}
    wrong = [line for name, f in own.items() for line in _wrong(name, f, plugin.kind)]
    if plugin.kind == "method":
        missing = [name for name in hookspecs.REQUIRED if name not in own]
        wrong += [f"the required hook '{name}' is missing" for name in missing]
        if "aggregate" not in own and plugin.aggregation is None:
            wrong.append(
                "the hook 'aggregate' is missing; write it, or let method.toml declare which mean "
                'the server takes: aggregation = "weighted" or "plain"'
            )
    if wrong:
        raise FedLoomError(f"{plugin.file}: {wrong[0]}")


def _wrong(name: str, function: Any, kind: str) -> Iterator[str]:
    """Yield what is wrong with how a function is marked and written, if it is or may be a hook."""
    mark, wraps = getattr(function, "fedloom_impl", None), kind == "wrapper"
    if mark is None:
        if name in HOOKS:
            yield f"'{name}' has a hook's name but no @hookimpl above it"
        return
    if name not in HOOKS:
        yield f"'{name}' is not a hook; {suggestion(name, HOOKS)}"
        return
    if name in hookspecs.UNPACKING and not wraps:
        instead = {"receive": "aggregate", "deliver": "client_update and predict"}[name]
        yield f"'{name}' is a hook of wrappers; do this in {instead}"
    marks = {key for key, value in mark.items() if value}
    if marks != ({"wrapper"} if wraps else set()) or inspect.isgeneratorfunction(function) != wraps:
        rule = "a plain @hookimpl, and return, not yield"
        if wraps:
            rule = "@hookimpl(wrapper=True), and yield once, for what the method gives"
        yield f"'{name}' of a {kind} must have {rule}"
    allowed = set(inspect.signature(getattr(hookspecs, name)).parameters)
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield (
                f"hook '{name}' gives '{key}' a default, which pluggy would never override; "
                "remove it"
            )
        if key not in allowed:
            yield f"hook '{name}' has no argument '{key}'; {suggestion(key, allowed)}"


class Hooks:
    """The hooks of one run, its method's and its wrappers', as functions of keyword arguments.

    `hooks.predict(task=..., received=..., clients=..., batch=...)` returns what the plugins return;
    their exceptions leave as `guarded` says. Hooks that unpack are called in another order.
    """

    def __init__(self, relay: Any, unpacking: Any, plugins: Sequence[Located]):
        self._relay, self._unpacking, self._plugins = relay, unpacking, tuple(plugins)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        relay = self._unpacking if name in hookspecs.UNPACKING else self._relay
        call = getattr(relay, name)
        return lambda **given: guarded(lambda: call(**given), self._plugins, name, given)

    def takes(self, hook: str, argument: str) -> bool:
        """Return True if a plugin's `hook` has this argument; hooks may leave arguments out."""
        return any(argument in one.argnames for one in getattr(self._relay, hook).get_hookimpls())


def describe(names: Sequence[str], hook: str, number: int = 0, ids: Sequence[int] = ()) -> str:
    """Return how an error names a call, as "method with wrapper: aggregate, round 3"."""
    words = [hook] + ([f"round {number}"] if number else [])
    if list(ids) == [SERVER_MODEL]:
        words.append("the server's model")
    elif ids:
        shown = ", ".join(str(k) for k in ids[:MOST]) + (", ..." if len(ids) > MOST else "")
        words.append(f"client {shown}" if len(ids) == 1 else f"clients {shown}")
    method, *wrappers = names
    return f"{method}{' with ' if wrappers else ''}{', '.join(wrappers)}: {', '.join(words)}"


def guarded(
    call: Callable[[], Result],
    plugins: Sequence[Located],
    hook: str,
    arguments: dict[str, Any] | None = None,
) -> Result:
    """Return what `call` returns; an exception of a plugin leaves as a one-line FedLoomError.

    It names which of the plugins (the method first) it was, hook, round, clients, file and line;
    the traceback goes to the log file. `arguments` are the hook's.
    """
    try:
        return call()
    except (FedLoomError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a plugin may raise SystemExit or GeneratorExit too
        frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((error.filename, error.lineno or 0))
        where, names = "", [plugin.name for plugin in plugins]
        for file, line in frames:  # the innermost comes last
            for plugin in plugins:
                if os.path.realpath(file).startswith(f"{os.path.realpath(plugin.folder)}{os.sep}"):
                    where, names = f"{file}:{line}: ", [plugin.name]
        number, ids = 0, list[int]()
        if arguments is not None:
            number = arguments["task"].round
            ids = [arguments["client"]] if "client" in arguments else []
            ids = list(arguments["clients"].ids) if "clients" in arguments else ids
        log.debug("an exception in a plugin:", exc_info=error)
        words = f"{describe(names, hook, number, ids)}: {where}{in_words(error)}"
        raise FedLoomError(words) from error


def load_hooks(plugin: Plugin, wrappers: Sequence[Plugin] = ()) -> Hooks:
    """Return the hooks of one run: the method's, defaults where it has none, and its wrappers'."""
    plugins = (plugin, *wrappers)
    modules = import_anew(plugins)
    for each, module in zip(plugins, modules, strict=True):
        check_hooks(module, each)
    defaults = {name: f for name, f in vars(hookspecs).items() if hasattr(f, "fedloom_impl")}
    if hasattr(modules[0], "aggregate"):  # if it lacks a `return`, the default would replace it
        del defaults["aggregate"]
    behind = SimpleNamespace(**defaults)
    return Hooks(_relay(behind, *modules), _relay(behind, *reversed(modules)), plugins)


def _relay(*modules: object) -> pluggy.HookRelay:
    """Register the modules in this order: the last is asked first, or wraps the rest."""
    manager = pluggy.PluginManager("fedloom")
    manager.add_hookspecs(hookspecs)
    for module in modules:
        manager.register(module)
    return manager.hook
