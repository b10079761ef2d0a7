"""Find plugins without importing them: in folders `plugins/` and in installed packages."""

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
from fedloom.common.schema import Identifier, Keys, validate

# plugins of a folder are imported as if they were modules of this package
PACKAGE = "fedloom_plugins"
# a plugin's folder has one of these files
FILES = (
    "method.toml", "source.toml", "scheme.toml", "backbone.toml", "table.toml", "figure.toml",
)  # fmt: skip
# a folder of plugins holds them directly, or in these subfolders
SUBFOLDERS = ("methods", "wrappers", "sources", "schemes", "backbones", "tables", "figures")

Item = TypeVar("Item")
Default = TypeVar("Default")


class PluginCatalogue(Mapping[str, Item]):
    """Plugins by name (or something made from them), and the errors of broken plugins.

    `catalogue[name]` raises the error of a broken plugin, so that it harms only who asks for it.
    Iteration, `in` and `get` leave broken plugins out.
    """

    def __init__(self, plugins: dict[str, Item], errors: dict[str, FedLoomError]):
        """Take the plugins by name, and the errors by the name or the folder of a plugin."""
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
    """A plugin of any kind: the keys of its TOML file, and the place of its folder."""

    name: Identifier
    """The name by which studies use it."""
    _toml: Path = PrivateAttr()
    _module: str | None = PrivateAttr()

    @classmethod
    def of(cls, file: Path, module: str | None) -> Self:
        """Read and check the TOML file of a plugin.

        `module` is the dotted name of the plugin's package if it is installed, else None.

        Raises:
            FedLoomError: the file is not TOML, or a key is wrong.
        """
        try:
            content = tomllib.loads(read_text(file))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise FedLoomError(f"{file}: {error}") from None
        plugin = validate(cls, content, KeyPath(str(file)))
        plugin._toml = file
        plugin._module = module
        plugin.check(KeyPath(str(file)))
        return plugin

    def check(self, where: KeyPath) -> None:
        """Check rules between several keys; `where` is the path to the file's top level."""

    @property
    def folder(self) -> Path:
        """The folder with plugin.py and the plugin's TOML file."""
        return self._toml.parent

    @property
    def module(self) -> str | None:
        """The dotted name of an installed plugin's package; None for a plugin in `plugins/`."""
        return self._module

    @property
    def package(self) -> str:
        """The dotted name of the package that plugin.py is imported from."""
        return self._module or f"{PACKAGE}.{self.name}"

    @property
    def file(self) -> Path:
        """The path of plugin.py, the module with the plugin's functions."""
        return self.folder / "plugin.py"


def _plugins_in(folder: Path) -> list[Path]:
    """Return the folders of the plugins that lie in `folder` or in one of its subfolders."""
    # a folder that has a subfolder's name but declares a plugin is itself a plugin
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


def _holds_plugin(plugin_type: str, path: Path) -> bool:
    """Return True if the folder holds a plugin of this type.

    A folder without any TOML file counts as a method, so that its error says what is missing.
    """
    return f"{plugin_type}.toml" in (_toml_files(path) or ["method.toml"])


def _installed(entry: EntryPoint) -> tuple[Path, str]:
    """Return the folder and the package of an installed plugin, without importing the plugin.

    Raises:
        FedLoomError: the entry point names no module, or its parent package cannot be imported.
    """
    where = f"entry point {entry.group}:{entry.name}"
    try:
        spec = importlib.util.find_spec(entry.module)
    except (Exception, SystemExit) as error:
        raise FedLoomError(f"{where}: {entry.value}: {in_words(error)}") from error
    if spec is None or spec.origin is None:
        raise FedLoomError(f"{where}: no module {entry.value}")

    # the entry point names the package itself, or a module in it
    package = entry.module
    if not spec.submodule_search_locations:
        package = entry.module.rpartition(".")[0]
    return Path(spec.origin).parent, package


Manifest = TypeVar("Manifest", bound=PluginManifest)


def discover_plugins(
    plugin_type: str, folders: Iterable[Path], model: type[Manifest]
) -> PluginCatalogue[Manifest]:
    """Return the plugins of one type (such as "method" or "figure").

    They are those in `folders` and the installed ones. If two folders define the same name, that
    plugin counts as broken.
    """
    # the places where plugins of this type lie
    places = list[Path | EntryPoint]()
    for folder in folders:
        places += [path for path in _plugins_in(folder) if _holds_plugin(plugin_type, path)]
    places += entry_points(group=f"fedloom.{plugin_type}s")

    # read their manifests; an error is kept until somebody asks for the plugin
    found = dict[str, Manifest]()
    errors = dict[str, FedLoomError]()
    for place in places:
        try:
            if isinstance(place, Path):
                path, module = place, None
            else:
                path, module = _installed(place)
            plugin = model.of(path / f"{plugin_type}.toml", module)
        except FedLoomError as error:
            errors[place.name] = error
            continue

        # the same name in two folders is an error
        first = found.setdefault(plugin.name, plugin)
        if first.folder != path:
            errors[plugin.name] = FedLoomError(
                f"{plugin_type} '{plugin.name}' is defined twice: in {first.folder} and in {path}; "
                "rename one"
            )

    usable = {name: plugin for name, plugin in found.items() if name not in errors}
    return PluginCatalogue(usable, errors)
