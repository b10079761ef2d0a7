"""The source files that a job's result depends on: the static import closure of its stage.

A name that a package re-exports (`from fedloom.toolbox import mean`, or `fl.mean` after `import
fedloom.toolbox as fl`) leads to the module that defines it. Modules that a job imports by name
while it runs (a source, a scheme, a kind of figure, a plugin) follow from the job, see `code_of`.
"""

import ast
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.common.checkout import LIBRARY
from fedloom.common.errors import FedLoomError
from fedloom.common.folders import read_python
from fedloom.config import kind_plugins
from fedloom.config.data_plugins import OWN
from fedloom.hooks.discovery import Located
from fedloom.hooks.manifest import find
from fedloom.study import jobs


class Code(NamedTuple):
    """The modules of fedloom and the plugins that a job starts from; imports lead to the rest."""

    modules: tuple[str, ...]
    plugins: tuple[Located, ...] = ()


def code_of(rule: str, job: Any) -> Code:
    """Return the code that a rule's job starts from; for `train` and `artefact` of its RunSpec."""
    modules, plugins = [f"fedloom.stages.{rule}"], list[Located]()

    def add(kind: str, name: str, module: str | None = None) -> None:
        plugin = kind_plugins.discover(kind).get(name)
        if plugin is None:
            modules.append(module or f"{OWN[kind].package}.{name}")
        else:
            plugins.append(plugin)

    match job:
        case jobs.DatasetJob():
            for source in _sources(job.dataset.source, job.dataset.settings):
                add("source", source)
        case jobs.PartitionJob():
            add("scheme", job.partition.scheme)
        case jobs.CacheJob():
            modules.append(f"fedloom.backbones.{job.backbone.family}")
        case jobs.TableJob() | jobs.FigureJob():
            add(rule, job.kind, job.module)
        case jobs.TrainJob() | jobs.ArtefactJob():
            return code_of(rule, job.spec)
        case jobs.RunSpec():
            modules.append(f"fedloom.backbones.{job.backbone.family}")
            names = [job.method.plugin, *(wrapper.plugin for wrapper in job.method.wrappers)]
            plugins += map(find, names)
    return Code(tuple(modules), tuple(plugins))


def _sources(source: str, settings: dict[str, Any]) -> list[str]:
    """Return the names of a source and of those of its parts."""
    parts = settings.get("parts", {}).values()
    return [source, *(name for part in parts for name in _sources(part["source"], part))]


def files_of(code: Code) -> list[str]:
    """Return the source files that code leads to, as paths from the working directory.

    Of a plugin: its modules and TOML file, and the modules of its package that they import, also
    the __init__.py of every package that they lie in, which Python runs first.
    """
    files: set[Path] = set()
    for name in code.modules:
        found = [*_resolve(LIBRARY, name, None)]
        if not found:
            raise FedLoomError(f"no module {name} in {LIBRARY}")
        files |= _closure(found)
    for plugin in code.plugins:
        files |= _closure([plugin.file, *plugin.folder.glob("**/*.py")], plugin)
        files |= {*filter(Path.is_file, plugin.folder.rglob("*.toml"))}
    return relative(files)


def relative(files: Iterable[Path]) -> list[str]:
    """Return paths from the working directory: results stay valid when the checkout is moved."""
    return sorted(os.path.relpath(file) for file in files)


def _closure(files: Iterable[Path], plugin: Located | None = None) -> set[Path]:
    """Return the files and all of fedloom, or of the plugin's package, that they import."""
    seen: set[Path] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            root, package = _package_of(file, plugin)
            todo += _imported(file, root, package)
            if package != "fedloom":  # and the packages that it lies in
                levels = len(file.relative_to(root).parts) - 1
                inits = (folder / "__init__.py" for folder in file.parents[:levels])
                todo += filter(Path.is_file, inits)
    return seen


def _package_of(file: Path, plugin: Located | None) -> tuple[Path, str]:
    """Return the folder that holds a file's top-level package, and that package's name."""
    # both may lie in one folder: that of installed packages
    if plugin is None or (
        file.is_relative_to(LIBRARY / "fedloom") and not file.is_relative_to(plugin.folder)
    ):
        return LIBRARY, "fedloom"
    if plugin.module is None:
        return plugin.folder.parent, plugin.folder.name
    levels = plugin.module.count(".") + 1
    return plugin.folder.parents[levels - 1], plugin.module.split(".")[0]


@cache
def _imported(file: Path, root: Path, package: str) -> tuple[Path, ...]:
    """Return the files of fedloom, or of the package below `root`, that a file imports."""
    folders = {package: root, "fedloom": LIBRARY}
    return tuple(
        path
        for module, names in _imports(file, root)
        if (top := module.split(".")[0]) in folders
        for name in names or [None]
        for path in _resolve(folders[top], module, name)
    )


@cache
def _imports(file: Path, root: Path) -> list[tuple[str, list[str]]]:
    """Return every module that a file imports outside TYPE_CHECKING, with the names it takes."""
    tree, found = read_python(file), list[tuple[str, list[str]]]()
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names = _names_read(tree, alias.asname) if alias.asname else []
                found.append((alias.name, names))
        elif isinstance(node, ast.ImportFrom):
            parts = list(file.relative_to(root).parent.parts)
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.append((module, [alias.name for alias in node.names]))
    return found


def _names_read(tree: ast.AST, alias: str) -> list[str]:
    """Return the names that are read of a module, `fl.mean`; [] if it is used in another way."""
    nodes = [*ast.walk(tree)]
    uses = {node for node in nodes if isinstance(node, ast.Name) and node.id == alias}
    reads = [node for node in nodes if isinstance(node, ast.Attribute) and node.value in uses]
    return sorted({node.attr for node in reads}) if len(reads) == len(uses) else []


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a syntax tree outside `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        of_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if of_types or isinstance(node, ast.expr):  # no import lies in an expression
            continue
        yield node
        yield from _nodes(node)


def _resolve(folder: Path, module: str, name: str | None) -> Iterator[Path]:
    """Yield the files behind `from module import name`, or `import module` if there is no name."""
    path = folder / module.replace(".", "/")
    init, inside = path / "__init__.py", path / name if name else path
    for file in (inside.with_suffix(".py"), inside / "__init__.py", path.with_suffix(".py")):
        if file.is_file() and file != init:
            yield file
            return
    if init.is_file():
        sources = [
            found
            for inner, names in _imports(init, folder)
            if name in names
            for found in _resolve(folder, inner, name)
        ]
        yield from sources or [init]
