"""The kinds of entry that a section of the config may have: models of their keys, found by name.

A kind of table, figure, source or scheme is a class with its keys, in a module with the code that
reads them; those modules are on higher floors. The kinds of backbone, by their library, are here.
"""

import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from fedloom.common.errors import FedLoomError, suggestion
from fedloom.common.schema import Keys, SchemaError, checked
from fedloom.config.datasets import ImageSize
from fedloom.config.reading import CONFIG

# the key that names what an entry is checked against
NAMED_BY = {
    "datasets": "source",
    "partitions": "scheme",
    "backbones": "library",
    "tables": "kind",
    "figures": "kind",
}


Kinds = Mapping[str, type[Keys]]  # of one section: the keys of its kinds, by name
Catalogue = Mapping[str, Kinds]  # by section


def derived(module: ModuleType, base: type[Keys]) -> list[type[Keys]]:
    """Return the classes that a module itself derives from `base`."""
    own = (value for value in vars(module).values() if isinstance(value, type))
    return [v for v in own if v.__module__ == module.__name__ and issubclass(v, base)]


class Room(Kinds):
    """The classes that the modules of a package derive from `base`: TwoWords is two_words."""

    def __init__(self, package: str, base: type[Keys]):
        self.package, self.base = package, base

    @cached_property
    def _found(self) -> dict[str, type[Keys]]:
        """The classes by the names of their kinds, in order."""
        found: dict[str, type[Keys]] = {}
        for file in pkgutil.iter_modules(import_module(self.package).__path__):
            module = import_module(f"{self.package}.{file.name}")
            for kind in derived(module, self.base):
                name = re.sub(r"\B(?=[A-Z])", "_", kind.__name__).lower()
                if name in found:
                    first = f"{found[name].__module__}.{found[name].__name__}"
                    line = f"{module.__name__}.{kind.__name__}: {first} is the kind '{name}'"
                    raise FedLoomError(f"{line} too; rename one")
                found[name] = kind
        return dict(sorted(found.items()))

    def __getitem__(self, name: str) -> type[Keys]:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Entry(NamedTuple):
    """An entry of a section: the name of its kind, and its keys with all defaults."""

    kind: str
    keys: Any


def check_entry(section: str, label: str, entry: dict[str, Any], kinds: Kinds) -> Entry:
    """Return an entry of the config, checked against the keys of its kind."""
    named_by, path = NAMED_BY[section], key_path(section, label)
    where = f"{CONFIG} {section}.{label}"
    name = entry.get(named_by)
    try:
        model = kinds.get(name) if isinstance(name, str) else None
    except FedLoomError as error:  # of a broken plugin
        raise SchemaError(f"{where}.{named_by}: {error}", [*path, named_by]) from None
    if model is None:
        line = f"{where}.{named_by}: no {named_by} '{name}'; {suggestion(str(name), kinds)}"
        raise SchemaError(line, [*path, named_by])
    keys = {key: value for key, value in entry.items() if key != named_by}
    return Entry(str(name), checked(model, keys, where, path))


def key_path(section: str, label: str) -> list[str]:
    """Return the path of an entry in its file; <label>.parts.<name> is that of a part."""
    return [section, *re.split(r"\.(parts)\.", label)]


RESNETS = Literal[
    "resnet18", "resnet34", "resnet50",
    "resnet8_wide", "resnet20", "resnet32", "resnet44", "resnet56",
]  # fmt: skip


class BackboneKind(Keys):
    """The keys of every backbone."""

    cache_format: Literal["bf16", "float16"] | None = None
    """Number format in which its features and patches are computed and cached; default: float32,
    and float16 to keep patches."""


class Timm(BackboneKind):
    """any timm vision transformer with a class token"""

    name: str
    """Timm's name, or micro_vit."""
    weights: str
    """Hub, or a .safetensors or .npz file."""
    image_size: ImageSize | None = None
    """Default: the model's own."""


class OpenClip(BackboneKind):
    """a CLIP of open_clip whose text tower is causal and read at the EOT

    OpenAI's, LAION's and DataComp's are.
    """

    name: str
    """Open_clip's name, as ViT-B-16-quickgelu, or micro_clip."""
    weights: str
    """A tag of open_clip's (openai: downloaded from a hub), or a .safetensors file."""


class Torchvision(BackboneKind):
    """a ResNet, for the methods that train one"""

    name: RESNETS
    """Torchvision's for 224 pixels (18, 34, 50), or the small ones for 32 pixels that CIFAR is
    trained on; resnet8_wide is four times as wide (CReFF, FEDIC)."""
    weights: str
    """None (untrained, drawn alike in all runs), or a .safetensors file in torchvision's names."""
    image_size: Annotated[int, Field(ge=8, le=4096)] | None = None
    """Default: 224 or 32."""


LIBRARIES: dict[str, type[BackboneKind]] = {
    "timm": Timm,
    "open_clip": OpenClip,
    "torchvision": Torchvision,
}
