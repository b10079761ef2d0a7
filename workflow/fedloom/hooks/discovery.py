"""Where plugins lie: the folders of `plugins/` and installed packages, found without an import."""

import importlib.util
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Self, TypeVar, overload

from pydantic import PrivateAttr

from fedloom.common.errors import FedLoomError, in_words
from fedloom.common.folders import read_text
from fedloom.common.key_path import KeyPath
from fedloom.common.schema import Identifier, Keys, checked

# the package that stands for a folder of plugins
PACKAGE = "fedloom_plugins"
# a plugin's folder has one of them
FILES = ("method.toml", "source.toml", "scheme.toml", "table.toml", "figure.toml")
# a folder of plugins holds them directly, or in these folders
SUBFOLDERS = ("methods", "wrappers", "sources", "schemes", "tables", "figures")

Item = TypeVar("Item")
Default = TypeVar("Default")


class PluginCatalogue(Mapping[str, Item]):
    """Plugins by name, or what is made of them, and the errors of those that cannot be used.

    A broken plugin harms only who asks for it: `catalogue[name]` raises its error. Iteration, `in`
    and `get` leave broken ones out.
    """

    def __init__(self, plugins: dict[str, Item], errors: dict[str, FedLoomError]):
        """Take the plugins, and the errors by a plugin's name or folder."""
        self._plugins = plugins
        self.errors = errors

    def __getitem__(self, name: str) -> Item:
        if name in self.errors:
            raise self.errors[name]
        return self._plugins[name]

    def __contains__(self, name: object) -> bool:
        return name in self._plugins

    @overload
    def get(self, name: str, /) -> Item | None: ...

    @overload
    def get(self, name: str, default: Item | Default, /) -> Item | Default: ...

    def get(self, name: str, default: object = None, /) -> object:
        """Return a plugin; the default if there is none, or if it is broken."""
        return self._plugins.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._plugins)

    def __len__(self) -> int:
        return len(self._plugins)


class PluginManifest(Keys):
    """A plugin of any kind: the keys of its TOML file, and where it lies."""

    name: Identifier
    """The name by which studies use it."""
    _toml: Path = PrivateAttr()
    _module: str | None = PrivateAttr()

    @classmethod
    def of(cls, file: Path, module: str | None) -> Self:
        """Read and check a plugin's TOML file."""
        try:
            content = tomllib.loads(read_text(file))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise FedLoomError(f"{file}: {error}") from None
        plugin = checked(cls, content, KeyPath(str(file)))
        plugin._toml = file
        plugin._module = module
        plugin.check(KeyPath(str(file)))
        return plugin

    def check(self, where: KeyPath) -> None:
        """Check what the keys say together; `where` is the path to the file's top level."""

    @property
    def folder(self) -> Path:
        """The folder that holds plugin.py and the file of `FILES`."""
        return self._toml.parent

    @property
    def module(self) -> str | None:
        """The dotted name of the installed package; None for a folder of `plugins/`."""
        return self._module

    @property
    def package(self) -> str:
        """The dotted name of the package that plugin.py is imported from."""
        return self._module or f"{PACKAGE}.{self.name}"

    @property
    def file(self) -> Path:
        """The module that holds its functions."""
        return self.folder / "plugin.py"


def _plugins_in(folder: Path) -> list[Path]:
    """Return the folders of plugins that lie in `folder`, directly or in one of its subfolders."""
    # a folder of a subfolder's name that declares a plugin is a plugin, and no subfolder
    subfolders = [folder / subfolder for subfolder in SUBFOLDERS if (folder / subfolder).is_dir()]
    subfolders = [subfolder for subfolder in subfolders if not _toml_files(subfolder)]

    found: list[Path] = []
    for place in (folder, *subfolders):
        for path in sorted(place.iterdir()):
            if path.is_dir() and path not in subfolders and not path.name.startswith(("_", ".")):
                found.append(path)
    return found


def _toml_files(path: Path) -> list[str]:
    """Return the names of the files in the folder that declare a plugin."""
    return [name for name in FILES if (path / name).exists()]


def _is_of(kind: str, path: Path) -> bool:
    """Return True for the folder of a plugin of this kind; without TOML file, of a method."""
    return f"{kind}.toml" in (_toml_files(path) or ["method.toml"])


def _installed(entry: EntryPoint) -> tuple[Path, str]:
    """Return folder and package of an installed plugin, without importing what lies in it."""
    where = f"entry point {entry.group}:{entry.name}"
    try:
        spec = importlib.util.find_spec(entry.module)
    except (Exception, SystemExit) as error:
        raise FedLoomError(f"{where}: {entry.value}: {in_words(error)}") from error
    if spec is None or spec.origin is None:
        raise FedLoomError(f"{where}: no module {entry.value}")

    # the entry point names the package, or a module in it
    package = entry.module
    if not spec.submodule_search_locations:
        package = entry.module.rpartition(".")[0]
    return Path(spec.origin).parent, package


Manifest = TypeVar("Manifest", bound=PluginManifest)


def discover_plugins(
    kind: str, folders: Iterable[Path], model: type[Manifest]
) -> PluginCatalogue[Manifest]:
    """Return the plugins of a kind, as "method" or "figure": in `folders`, and installed ones.

    A name that two folders define is broken.
    """
    # where plugins of the kind lie
    places = list[Path | EntryPoint]()
    for folder in folders:
        places += [path for path in _plugins_in(folder) if _is_of(kind, path)]
    places += entry_points(group=f"fedloom.{kind}s")

    # their manifests; an error waits until somebody asks for the plugin
    found = dict[str, Manifest]()
    errors = dict[str, FedLoomError]()
    for place in places:
        try:
            if isinstance(place, Path):
                path, module = place, None
            else:
                path, module = _installed(place)
            plugin = model.of(path / f"{kind}.toml", module)
        except FedLoomError as error:
            errors[place.name] = error
            continue

        # the first of a name, or a second one
        first = found.setdefault(plugin.name, plugin)
        if first.folder != path:
            errors[plugin.name] = FedLoomError(
                f"{kind} '{plugin.name}' is defined twice: in {first.folder} and in {path}; rename "
                "one"
            )

    usable = {name: plugin for name, plugin in found.items() if name not in errors}
    return PluginCatalogue(usable, errors)
