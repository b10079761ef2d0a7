"""Import plugin.py of plugins of any kind, and combine a method and its wrappers into hooks.

This module does not import torch.
"""

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.hooks import hookspecs
from fedloom.hooks.discovery import PACKAGE, PluginManifest
from fedloom.hooks.manifest import MethodManifest
from fedloom.hooks.plugin_code import run_plugin_code
from fedloom.hooks.run_hooks import HOOKS, Hooks

# old names (before 2026-11-27) of modules that plugins may import -> their new names
MOVED = {
    "fedloom.data.toolbox": "fedloom.data.source_toolbox",
    "fedloom.report.toolbox": "fedloom.report.output_toolbox",
}

# ---- import --------------------------------------------------------------------------------------


def import_plugin(plugin: PluginManifest) -> ModuleType:
    """Return plugin.py of a plugin as a module, which is imported unless Python already has it.

    The module belongs to a package, so that `from . import x` works in it.
    """
    module = sys.modules.get(f"{plugin.package}.plugin")
    if module is not None and module.__file__ == str(plugin.file):
        return module
    return reimport_plugins([plugin])[0]


def reimport_plugins(plugins: Sequence[PluginManifest]) -> list[ModuleType]:
    """Import plugin.py of these plugins anew, even if Python has already imported it.

    There are two reasons: a plugin must hold nothing between jobs, and two folders may have plugins
    of the same name.
    """
    for plugin in plugins:
        _forget_modules(plugin)

    modules = list[ModuleType]()
    for plugin in plugins:
        module = run_plugin_code(
            lambda plugin=plugin: _import_module(plugin), [plugin], "import of plugin.py"
        )
        modules.append(module)
    return modules


def _forget_modules(plugin: PluginManifest) -> None:
    """Remove the modules of a plugin from those that Python has imported.

    For an installed plugin, these are all modules of its top-level package. Compiled modules stay,
    because Python cannot load them twice.
    """
    package = plugin.package
    if plugin.module is not None:
        package = plugin.module.partition(".")[0]
    for name in [*sys.modules]:
        if name != package and not name.startswith(f"{package}."):
            continue
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or file.endswith(".py"):
            del sys.modules[name]


def _import_module(plugin: PluginManifest) -> ModuleType:
    """Import plugin.py of a plugin.

    Raises:
        FedLoomError: plugin.py imports a module that has another name now.
    """
    if plugin.module is None:
        # The package of all plugins has no folder. So no plugin can import another one, whose files
        # a run would not depend on.
        _make_package(PACKAGE, [])
        _make_package(plugin.package, [str(plugin.folder)])

    # if a module has moved, say where it is now
    try:
        return importlib.import_module(f"{plugin.package}.plugin")
    except ModuleNotFoundError as error:
        moved_to = MOVED.get(error.name or "")
        if moved_to is None:
            raise
        raise FedLoomError(
            f"{plugin.file}: imports {error.name}, which is now {moved_to}; import that"
        ) from error


def _make_package(name: str, folders: list[str]) -> None:
    """Make a package, without __init__.py, whose modules lie in the folders."""
    spec = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    spec.submodule_search_locations = folders
    sys.modules[name] = importlib.util.module_from_spec(spec)


# ---- hooks ---------------------------------------------------------------------------------------


def load_hooks(plugin: MethodManifest, wrappers: Sequence[MethodManifest] = ()) -> Hooks:
    """Return the hooks of one run, from the functions of the method and of its wrappers.

    Raises:
        FedLoomError: a plugin cannot be imported, or its hooks are written wrongly.
    """
    plugins = (plugin, *wrappers)
    modules = reimport_plugins(plugins)
    for each, module in zip(plugins, modules, strict=True):
        _check_hooks(module, each)
    method, *wrapper_modules = modules
    return Hooks(method, wrapper_modules, plugins)


def _check_hooks(module: ModuleType, plugin: MethodManifest) -> None:
    """Check how a plugin's hooks are written.

    pluggy accepts some of these mistakes, and refuses the others with a traceback.

    Raises:
        FedLoomError: a hook is missing, is marked wrongly, or has a wrong argument.
    """
    # the plugin's own functions, without those that it imports
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: function for name, function in functions if function.__module__ == module.__name__}
    for name, function in own.items():
        for mistake in _mistakes(name, function, plugin.kind):
            raise FedLoomError(f"{plugin.file}: {mistake}")

    # hooks that a method must have, but not a wrapper
    if plugin.kind != "method":
        return
    for name in hookspecs.REQUIRED:
        if name not in own:
            raise FedLoomError(f"{plugin.file}: the required hook '{name}' is missing")
    if "aggregate" not in own and plugin.aggregation is None:
        raise FedLoomError(
            f"{plugin.file}: the hook 'aggregate' is missing; write it, or let method.toml declare "
            'which mean the server takes: aggregation = "weighted" or "plain"'
        )


def _mistakes(name: str, function: Callable[..., object], role: str) -> Iterator[str]:
    """Yield each mistake in how a function is marked and written.

    `role` is "method" or "wrapper". A function without the mark of a hook is wrong only if it has
    the name of a hook.
    """
    # a function has both the mark and the name of a hook, or neither
    mark = getattr(function, "fedloom_impl", None)
    if mark is None:
        if name in HOOKS:
            yield f"'{name}' has a hook's name but no @hookimpl above it"
        return
    if name not in HOOKS:
        yield f"'{name}' is not a hook; {suggestion(name, HOOKS)}"
        return

    # a wrapper's hook yields and a method's hook returns; the mark must agree
    marks = {key for key, value in mark.items() if value}
    yields = inspect.isgeneratorfunction(function)
    if role == "wrapper":
        if marks != {"wrapper"} or not yields:
            yield (
                f"'{name}' of a {role} must have @hookimpl(wrapper=True), and yield once, for what "
                "the method gives"
            )
    else:
        if name == "receive":
            yield "'receive' is a hook of wrappers; do this in aggregate"
        if name == "deliver":
            yield "'deliver' is a hook of wrappers; do this in client_update and predict"
        if marks or yields:
            yield f"'{name}' of a {role} must have a plain @hookimpl, and return, not yield"

    # a hook may leave out arguments, but must not add one
    allowed = set(inspect.signature(getattr(hookspecs, name)).parameters)
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield (
                f"hook '{name}' gives '{key}' a default, which pluggy would never override; "
                "remove it"
            )
        if key not in allowed:
            yield f"hook '{name}' has no argument '{key}'; {suggestion(key, allowed)}"
