"""Methods: found without importing them, and loaded one per run.

A method is a folder with `method.toml` and `plugin.py`: in `plugins/` of the checkout, or in an
installed package that declares an entry point of the group `fedloom.methods`.
"""

import importlib.util
import inspect
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pluggy

from fedloom import hookspecs, schema
from fedloom.errors import FedLoomError

ROOT = Path(__file__).resolve().parents[2]
TRAINING = {  # of what neither method.toml nor the study says, as torch has it
    "decay": 1.0,
    "momentum": 0.0,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.0,
    "clip": None,
    "augment": False,
}
HOOKS = tuple(name for name, f in vars(hookspecs).items() if hasattr(f, "fedloom_spec"))


@dataclass(frozen=True)
class Method:
    """What a plugin's `method.toml` says, and where it lies; `kind` is method or wrapper."""

    name: str
    folder: Path
    about: dict

    @property
    def kind(self) -> str:
        return self.about["kind"]

    @property
    def sources(self) -> list[Path]:
        """The files whose change makes the method's runs stale."""
        return sorted(p for p in self.folder.rglob("*") if p.suffix in (".py", ".toml"))

    @property
    def features_only(self) -> bool:
        """Whether an image is to it no more than its cached feature: a ViT method has prompts in
        the image tower, which a CLIP method leaves alone unless it reads its patches."""
        return self.about["family"] == "clip" and "patches" not in self.about["needs"]

    def artefacts(self, options: dict) -> list[str]:
        """The tables that its artefact hook gives with these options, all of them filled in."""
        return [
            name
            for name, entry in self.about["artefacts"].items()
            if entry.get("needs", {}).items() <= options.items()
        ]

    def training(self, *overrides: dict) -> dict:
        """The paper's training options, overridden in turn."""
        merged = TRAINING | self.about.get("training", {})
        for override in overrides:
            merged |= override
        return merged

    def options(self, given: dict, where: str) -> dict:
        """All options, the given ones checked.

        Raises:
            FedLoomError: unknown option, wrong type or out of bounds; names `where`.
        """
        known = self.about["options"]
        properties = {name: option | {"default": None} for name, option in known.items()}
        shape = {"type": "object", "additionalProperties": False, "properties": properties}
        schema.check(given, shape, where)
        return {name: option["default"] for name, option in known.items()} | given


def _read(folder: Path) -> Method:
    file = folder / "method.toml"
    try:
        about = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise FedLoomError(f"{folder}: a method needs the file method.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise FedLoomError(f"{file}: {error}") from None
    root = schema.load("method")
    schema.check(about, root, f"{file}: ")
    about = schema.filled(about, root, root)
    training = schema.load("config")["$defs"]["training"]
    schema.check(about.get("training", {}), training, f"{file}: training")
    for name, entry in about["artefacts"].items():
        for option in entry.get("needs", {}):
            if option not in about["options"]:
                hint = schema.suggestion(option, list(about["options"]))
                raise FedLoomError(f"{file}: artefacts.{name}.needs: no option '{option}'; {hint}")
    for name, option in about["options"].items():
        schema.check(option["default"], option, f"{file}: default of options.{name}")
    if not (folder / "plugin.py").exists():
        raise FedLoomError(f"{folder}: a method needs the file plugin.py")
    return Method(about["name"], folder, about)


def _installed() -> list[Path]:
    """Folders of installed methods, located without importing what lies in them."""
    folders = []
    for entry in entry_points(group="fedloom.methods"):
        found = importlib.util.find_spec(entry.module)
        if found is None or found.origin is None:
            raise FedLoomError(f"entry point fedloom.methods:{entry.name}: no module {entry.value}")
        folders.append(Path(found.origin).parent)
    return folders


def discover(folder: Path | None = None) -> dict[str, Method]:
    """All methods by name: those of `folder` (default: the checkout's plugins/) and installed ones.

    Raises:
        FedLoomError: a broken method.toml, or one name at two places.
    """
    folder = folder or ROOT / "plugins"
    local = [p for p in sorted(folder.iterdir()) if p.is_dir() and p.name[0] not in "_."]
    methods: dict[str, Method] = {}
    for place in [*local, *_installed()]:
        method = _read(place)
        if method.name in methods and methods[method.name].folder != place:
            raise FedLoomError(
                f"method '{method.name}' is defined twice: in {methods[method.name].folder} and "
                f"in {place}; rename one"
            )
        methods[method.name] = method
    return methods


def find(name: str, where: str = "method", kind: str | None = None) -> Method:
    """The plugin of that name, of that kind if it is given.

    Raises:
        FedLoomError: there is none; suggests the nearest.
    """
    methods = {k: m for k, m in discover().items() if kind in (None, m.kind)}
    if name not in methods:
        raise FedLoomError(
            f"{where}: no {kind or 'method'} '{name}'; " + schema.suggestion(name, list(methods))
        )
    return methods[name]


def _import(method: Method) -> ModuleType:
    name = f"fedloom_method_{method.name}"
    found = importlib.util.spec_from_file_location(name, method.folder / "plugin.py")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


def _check_hooks(module: ModuleType, file: Path, kind: str) -> None:
    """What pluggy lets pass and a person would search for an hour."""
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: f for name, f in functions if f.__module__ == module.__name__}
    for name, function in own.items():
        marked = hasattr(function, "fedloom_impl")
        if name in HOOKS and not marked:
            raise FedLoomError(f"{file}: '{name}' has a hook's name but no @hookimpl above it")
        if marked and name not in HOOKS:
            raise FedLoomError(
                f"{file}: '{name}' is no hook; {schema.suggestion(name, list(HOOKS))}"
            )
        if not marked:
            continue
        if function.fedloom_impl["wrapper"] != (kind == "wrapper"):
            what = "@hookimpl(wrapper=True)" if kind == "wrapper" else "plain @hookimpl"
            raise FedLoomError(f"{file}: '{name}' of a {kind} needs {what} above it")
        takes = inspect.signature(function).parameters.values()
        allowed = set(inspect.signature(getattr(hookspecs, name)).parameters)
        for parameter in takes:
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
    required = hookspecs.REQUIRED if kind == "method" else ()
    for name in required:
        if name not in own:
            raise FedLoomError(f"{file}: the required hook '{name}' is missing")


def hooks(method: Method, *defaults: object, wrappers: Sequence[Method] = ()) -> pluggy.HookRelay:
    """The hooks of one run: the method's, with `defaults` where it has none, in its wrappers.

    Raises:
        FedLoomError: a hook is missing, misspelt, unmarked or has a wrong argument.
    """
    modules = []
    for plugin in (method, *wrappers):
        modules.append(_import(plugin))
        _check_hooks(modules[-1], plugin.folder / "plugin.py", plugin.kind)
    manager = pluggy.PluginManager("fedloom")
    manager.add_hookspecs(hookspecs)
    for plugin in (*defaults, *modules):  # the last registered is asked first, or wraps the rest
        manager.register(plugin)
    return manager.hook
