"""Which source files a job's result depends on: the static import closure of what it runs.

A digest of these files is a parameter of every rule, so that an edit reruns what it concerns and
nothing else. A name that a package only hands on (`from fedloom.toolbox import mean`, or `fl.mean`
after `import fedloom.toolbox as fl`) leads to the module that defines it. What is imported by name
while running (a source, a scheme, a kind of figure) is not seen here; the plan adds it.
"""

import ast
import importlib
import logging
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import read_python
from fedloom.hooks.manifest import Located, find

log = logging.getLogger(__name__)

LIBRARY = ROOT / "workflow"
# They say where files lie, what a job's JSON looks like, whether it is stale and how errors read.
# What a job computes follows from the JSON, its inputs and every other module that it imports.
WITHOUT_EFFECT = {
    "fedloom.study.jobs",
    "fedloom.study.paths",
    "fedloom.study.provenance",
    "fedloom.config.reading",
    "fedloom.study.runs",
    "fedloom.config.settings",
    "fedloom.study.staleness",
    "fedloom.config.weights",
    "fedloom.common.errors",
    "fedloom.common.logs",
}


def library_sources(*modules: str) -> list[str]:
    """Return the files of modules of fedloom and of all that they import, as paths from here."""
    return relative(_closure(_module_file(name) for name in modules))


def plugin_sources(*names: str) -> list[str]:
    """Return the files of methods and wrappers, see `files_of`."""
    return relative({file for name in names for file in files_of(find(name))})


def files_of(plugin: Located) -> list[Path]:
    """Return the files of a plugin, what they import of fedloom, and its TOML file.

    The modules of an installed plugin's package count wherever they lie in it, and the __init__.py
    of every package that they lie in, which Python runs first.
    """
    modules = _closure([plugin.file, *plugin.folder.glob("**/*.py")], plugin)
    return [*modules, *filter(Path.is_file, plugin.folder.rglob("*.toml"))]


def import_all(modules: Iterable[str], plugins: Iterable[Located]) -> None:
    """Import what modules of fedloom, and the plugin.py of plugins, import anywhere in their code.

    An import inside a function would run later, when the file may have been edited since. A module
    that cannot be imported is left for the function that asks for it, which may do without.
    """
    names = [_name(file, LIBRARY) for file in _closure(_module_file(name) for name in modules)]
    for plugin in plugins:
        for file in _closure([plugin.file], plugin):
            if not file.is_relative_to(LIBRARY):
                root, _ = _package_of(file, plugin)
                name = _name(file, root)
                if plugin.module is None:
                    name = plugin.package + name.removeprefix(plugin.folder.name)
                names.append(name)
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            log.debug("%s cannot be imported: %s", name, error)


def _name(file: Path, root: Path) -> str:
    """Return the dotted name of a module below `root`."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run_sources(stage: str, family: str, plugins: Iterable[str]) -> list[str]:
    """Return the sources of a stage that works on a run: its backbone's and its plugins' too.

    Args:
        family: of the backbone, vit or clip.
        plugins: names of the method and of its wrappers.
    """
    modules = library_sources(*run_modules(stage, family))
    return sorted({*modules, *plugin_sources(*plugins)})


def run_modules(stage: str, family: str) -> tuple[str, str]:
    """Return the modules of fedloom that a stage starts from which works on a run."""
    return f"fedloom.stages.{stage}", f"fedloom.backbones.{family}"


def relative(files: Iterable[Path]) -> list[str]:
    """Return paths from the working directory: results stay valid when the checkout is moved."""
    return sorted(os.path.relpath(file) for file in files)


def _module_file(name: str) -> Path:
    """Return the file of a module of fedloom.

    Raises:
        FedLoomError: there is no such module.
    """
    path = LIBRARY / name.replace(".", "/")
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    raise FedLoomError(f"no module {name} in {LIBRARY}")


def _has_effect(file: Path) -> bool:
    """Return False for modules whose change leaves every result as it is."""
    if not file.is_relative_to(LIBRARY):
        return True
    name = ".".join(file.relative_to(LIBRARY).with_suffix("").parts)
    return name not in WITHOUT_EFFECT


def _closure(files: Iterable[Path], plugin: Located | None = None) -> list[Path]:
    """Return the files and all of fedloom, or of the plugin's package, that they import."""
    seen: set[Path] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            root, package = _package_of(file, plugin)
            todo += _imported(file, root, package)
            if root != LIBRARY:
                todo += _packages(file, root)
    return sorted(file for file in seen if _has_effect(file))


def _package_of(file: Path, plugin: Located | None) -> tuple[Path, str]:
    """Return the folder that holds a file's top-level package, and that package's name."""
    if file.is_relative_to(LIBRARY):
        return LIBRARY, "fedloom"
    assert plugin is not None, f"{file} is neither of fedloom nor of a plugin"
    if plugin.module is None:
        return plugin.folder.parent, plugin.folder.name
    levels = plugin.module.count(".") + 1
    return plugin.folder.parents[levels - 1], plugin.module.split(".")[0]


def _packages(file: Path, root: Path) -> list[Path]:
    """Return the __init__.py of the packages below `root` that a module lies in."""
    levels = len(file.relative_to(root).parts) - 1
    inits = [folder / "__init__.py" for folder in file.parents[:levels]]
    return [init for init in inits if init.is_file()]


@cache
def _imported(file: Path, root: Path, package: str) -> tuple[Path, ...]:
    """Return the files of fedloom, or of the package below `root`, that a file imports."""
    found: list[Path] = []
    for module, names in _imports(file, root):
        top = module.split(".")[0]
        folder = LIBRARY if top == "fedloom" else root
        if top not in ("fedloom", package):
            continue
        found += [path for name in names or [None] for path in _resolve(folder, module, name)]
    return tuple(found)


def _imports(file: Path, root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield every module that a file imports outside TYPE_CHECKING, with the names it takes.

    Raises:
        FedLoomError: see `read_python`.
    """
    tree = read_python(file)
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, _names_read(tree, alias.asname) if alias.asname else []
        elif isinstance(node, ast.ImportFrom):
            parts = list(file.relative_to(root).parent.parts)
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, [alias.name for alias in node.names]


def _names_read(tree: ast.AST, alias: str) -> list[str]:
    """Return the names that are read of a module, `fl.mean`; [] if it is used in another way."""
    names = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == alias
    ]
    uses = sum(isinstance(node, ast.Name) and node.id == alias for node in ast.walk(tree))
    return sorted(set(names)) if len(names) == uses else []


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a syntax tree without what stands below `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _nodes(node)


def _resolve(folder: Path, module: str, name: str | None) -> Iterator[Path]:
    """Yield the files behind `from module import name`, or `import module` if there is no name."""
    path = folder / module.replace(".", "/")
    if name is not None and (path / f"{name}.py").is_file():
        yield path / f"{name}.py"
    elif name is not None and (path / name / "__init__.py").is_file():
        yield path / name / "__init__.py"
    elif path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")
    elif (path / "__init__.py").is_file():
        init = path / "__init__.py"
        sources = [
            found
            for inner, names in _imports(init, folder)
            if name is not None and name in names
            for found in _resolve(folder, inner, name)
        ]
        yield from sources or [init]
