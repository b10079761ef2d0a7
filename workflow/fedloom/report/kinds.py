"""The kinds of table or figure: classes of a package's modules, found by name."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from fedloom.config.output_kinds import OutputKind


class Kinds(Mapping[str, type[OutputKind]]):
    """The classes that the modules of a package derive from `base`: TwoMetrics is two_metrics.

    Looking a kind up imports its module alone, so that plans stay fast.
    """

    def __init__(self, package: str, base: type[OutputKind]):
        self.package, self.base = package, base

    def __getitem__(self, name: str) -> type[OutputKind]:
        module, title = _classes(self.package)[name]
        kind = getattr(import_module(module), title)
        if not issubclass(kind, self.base):
            raise KeyError(name)
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name in _classes(self.package) if name in self))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _classes(package: str) -> dict[str, tuple[str, str]]:
    """Return module and name of the classes that a package's source defines, by name of a kind."""
    (folder,) = map(Path, import_module(package).__path__)
    return {
        re.sub(r"\B(?=[A-Z])", "_", title).lower(): (f"{package}.{file.stem}", title)
        for file in sorted(folder.glob("*.py"))
        for title in re.findall(r"^class (\w+)\(", file.read_text(), re.MULTILINE)
    }
