"""Find the source files that a job's result depends on, by following imports from its module.

Nothing is imported: the imports are read from the source. If a package re-exports a name, such as
`fl.mean` after `import fedloom.toolbox as fl`, the name leads to the module that defines it. Some
modules are imported at run time, by a name in the job: its rule lists them (see `Rule.named_code`).
"""

import ast
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.common.folders import read_python
from fedloom.common.receipts import digest, sha256
from fedloom.hooks.discovery import PluginManifest
from fedloom.machine.install import LIBRARY


def source_files(modules: Iterable[str], plugins: Iterable[PluginManifest] = ()) -> list[str]:
    """Return the source files that modules and plugins lead to, as paths from the current folder.

    A plugin leads to all Python and TOML files of its folder. If it was installed with a package,
    it leads to all modules of that package.

    Raises:
        FedLoomError: a module does not exist, or a file is not valid Python.
    """
    files: set[Path] = set()
    for name in modules:
        found = [*_resolve(name, None)]
        if not found:
            raise FedLoomError(f"no module {name} in {LIBRARY}")
        files |= _closure(found)

    for plugin in plugins:
        own = plugin_files(plugin)
        files |= {*own} | _closure(file for file in own if file.suffix == ".py")
    return sorted(os.path.relpath(file) for file in files)


def plugin_files(plugin: PluginManifest) -> list[Path]:
    """Return the Python and TOML files of a plugin, without the modules of FedLoom.

    If it was installed with a package, they are all modules of that package.
    """
    # a plugin in the package a.b.c was installed with a, two folders up
    levels = 0
    if plugin.module:
        levels = plugin.module.count(".")
    package = [plugin.folder, *plugin.folder.parents][levels]
    tables = filter(Path.is_file, plugin.folder.rglob("*.toml"))
    return sorted({plugin.file, *package.rglob("*.py"), *tables})


def plugin_digest(plugin: PluginManifest) -> str:
    """Return a digest of the files of a plugin, which does not depend on their folder."""
    return digest(sorted([file.name, sha256(file)] for file in plugin_files(plugin)))


def sources_digest(
    modules: Iterable[str], plugins: Iterable[PluginManifest], known: dict[str, str] | None = None
) -> str:
    """Return a digest of the source files that modules and plugins lead to.

    The digest covers the files' names without folders, so that results stay valid when a checkout
    or an environment moves. `known` is a cache of files' digests, for several calls.
    """
    known = {} if known is None else known
    names_and_digests = []
    for file in source_files(modules, plugins):
        if file not in known:
            known[file] = sha256(Path(file))
        names_and_digests.append([Path(file).name, known[file]])
    return digest(sorted(names_and_digests))


def _closure(files: Iterable[Path]) -> set[Path]:
    """Return the files and all of fedloom that they import."""
    seen = set[Path]()
    todo = set(files)
    while todo:
        seen |= todo
        imported = set[Path]()
        for file in todo:
            imported.update(_imported(file))
        todo = imported - seen
    return seen


@cache
def _imported(file: Path) -> list[Path]:
    """Return the files of fedloom that a file imports."""
    found = list[Path]()
    for module, names in _imports(file):
        for name in names or [None]:
            found += _resolve(module, name)
    return found


@cache
def _imports(file: Path) -> list[tuple[str, list[str]]]:
    """Return the modules of fedloom that a file imports, each with the names that it reads of it.

    Imports under `if TYPE_CHECKING:` do not count. An empty list of names stands for the module as
    a whole.
    """
    tree = read_python(file)
    found = list[tuple[str, list[str]]]()
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # after `import fedloom.toolbox as fl`, the names are read as attributes of `fl`
                names = list[str]()
                if alias.asname:
                    names = _names_read(tree, alias.asname)
                found.append((alias.name, names))

        # a relative import stays within a plugin, all of whose files count anyhow
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module, [alias.name for alias in node.names]))

    return [each for each in found if each[0].split(".")[0] == "fedloom"]


def _names_read(tree: ast.AST, alias: str) -> list[str]:
    """Return the attributes that are read of a module, such as `mean` for `fl.mean`.

    Return [] if the module is used in another way.
    """
    nodes = [*ast.walk(tree)]
    uses = {node for node in nodes if isinstance(node, ast.Name) and node.id == alias}
    reads = [node for node in nodes if isinstance(node, ast.Attribute) and node.value in uses]

    # a use that reads no attribute may hand on the whole module
    if len(reads) != len(uses):
        return []
    return sorted({node.attr for node in reads})


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a syntax tree outside `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        # an expression contains no import
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if is_for_types or isinstance(node, ast.expr):
            continue
        yield node
        yield from _nodes(node)


def _resolve(module: str, name: str | None) -> Iterator[Path]:
    """Yield the files behind `from module import name`, or `import module` if there is no name."""
    path = LIBRARY / module.replace(".", "/")
    init = path / "__init__.py"
    inside = path
    if name:
        inside = path / name

    # a module or a package of this name, or a module that defines it
    for file in (inside.with_suffix(".py"), inside / "__init__.py", path.with_suffix(".py")):
        if file.is_file() and file != init:
            yield file
            return

    # else the package re-exports the name from other modules, or is meant itself
    if init.is_file():
        found = list[Path]()
        for inner, names in _imports(init):
            if name in names:
                found += _resolve(inner, name)
        yield from found or [init]
