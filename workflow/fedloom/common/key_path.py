"""Name a value that a user wrote by the keys that lead to it, and raise errors about it."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from fedloom.common.errors import FedLoomError, unknown_name

CONFIG_WORDS = "config key"  # an error about a key of the merged config begins with this


@dataclass(frozen=True)
class KeyPath:
    """The keys that lead to a value: in the config, in a file, or in what is made from a value.

    An error about the value begins with the path as text, for example:

    - "config key methods.a.wrappers[0].plugin" for a value of the config;
    - "a/method.toml: options.lr" for a value of a file;
    - "config key study.tune: methods.a.lr" for a value that is made from `study.tune`.
    """

    source: "str | KeyPath"
    """CONFIG_WORDS, a file, or the key path of the value from which this one is made."""
    keys: tuple[str | int, ...] = ()
    """The keys of mappings, and the positions in lists."""

    def __truediv__(self, key: str | int) -> Self:
        """Return the path to a key, or to a position, inside the value."""
        return replace(self, keys=(*self.keys, key))

    def __str__(self) -> str:
        """Write the path as the beginning of an error."""
        if not self.keys:
            return str(self.source)
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys)
        separator = " " if self.source == CONFIG_WORDS else ": "
        return f"{self.source}{separator}{path.removeprefix('.')}"

    def in_config(self) -> tuple[str | int, ...]:
        """Return the keys that lead to the value in the config; () if it comes from a file."""
        if isinstance(self.source, KeyPath):
            return self.source.in_config()
        return self.keys if self.source == CONFIG_WORDS else ()

    def error(self, message: str, item: str | None = None) -> "InvalidKeyError":
        """Return an error about the value; if it is a list, `item` may name the wrong entry."""
        return InvalidKeyError(f"{self}: {message}", self, item)

    def check_known(
        self, name: str, known: Collection[str], words: str, item: str | None = None
    ) -> None:
        """Raise an InvalidKeyError if a name is unknown.

        Args:
            name: the name.
            known: the known names.
            words: the error's words before the name, such as "no label".
            item: the wrong entry, if the value at this path is a list; default: the name.
        """
        if name not in known:
            raise self.error(f"{words} {unknown_name(name, known)}", name if item is None else item)


CONFIG = KeyPath(CONFIG_WORDS)


class InvalidKeyError(FedLoomError):
    """A value that the user wrote is wrong; the error has the key path of the value.

    With the path, `config.reading.locate_error` finds the file and the line of the value.
    """

    def __init__(self, line: object, path: KeyPath, item: str | None = None) -> None:
        """Keep the error's line, the key path, and the wrong item if the value there is a list."""
        super().__init__(line)
        self.path = path
        self.item = item
