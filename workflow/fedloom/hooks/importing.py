"""Import plugin.py of a plugin of any kind, without importing torch."""

import ast
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from types import ModuleType

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import read_text
from fedloom.hooks.discovery import PACKAGE, Located
from fedloom.hooks.hook_caller import guarded


def import_plugin(plugin: Located) -> ModuleType:
    """Import a plugin's plugin.py as a module of a package, so that `from . import x` works.

    If it was imported before, this is the same module.
    """
    module = sys.modules.get(f"{plugin.package}.plugin")
    if module is not None and module.__file__ == str(plugin.file):
        return module
    return import_anew([plugin])[0]


def import_anew(plugins: Sequence[Located]) -> list[ModuleType]:
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
