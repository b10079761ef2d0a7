"""Name a value that a user wrote by the keys that lead to it, and raise errors about it."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from fedloom.common.errors import FedLoomError, unknown_name

CONFIG_WORDS = "config key"  # begin an error about a key of the merged config


@dataclass(frozen=True)
class KeyPath:
    """The keys that lead to a value of the config, of a file, or of what is made from a value.

    Written out, it begins an error: "config key methods.a.wrappers[0].plugin" for the config,
    "a/method.toml: options.lr" for a file, "config key study.tune: methods.a.lr" for what is made
    from `study.tune`.
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
        """Return the keys of the config that the value comes from; none if it is of a file."""
        if isinstance(self.source, KeyPath):
            return self.source.in_config()
        return self.keys if self.source == CONFIG_WORDS else ()

    def error(self, message: str, item: str | None = None) -> "InvalidKeyError":
        """Return the error that the value is wrong; `item` is the entry of a list that is meant."""
        return InvalidKeyError(f"{self}: {message}", self, item)

    def check_known(
        self, name: str, known: Collection[str], words: str, item: str | None = None
    ) -> None:
        """Refuse an unknown name; `words` come before it in the error, as "no label".

        The name is an item of the list at this path, unless another `item` is given.
        """
        if name not in known:
            raise self.error(f"{words} {unknown_name(name, known)}", name if item is None else item)


CONFIG = KeyPath(CONFIG_WORDS)


class InvalidKeyError(FedLoomError):
    """A value that the user wrote is wrong: the error knows its key path, and so its line."""

    def __init__(self, line: object, path: KeyPath, item: str | None = None) -> None:
        """Take the error's line, the key path, and the item of the list there that is meant."""
        super().__init__(line)
        self.path = path
        self.item = item
