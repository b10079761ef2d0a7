"""Changes of single keys from the command line, and the place that an error of the config names."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.common.errors import FedLoomError
from fedloom.config.reading import CONFIG, locate, parse, within
from fedloom.config.study import Config, Study


class Change(NamedTuple):
    """A key of the config with another value; `text` is the argument that says so."""

    keys: list[str]
    value: Any
    text: str


def read_change(text: str) -> Change:
    """Read "study.rounds=4"; the keys of `study` may also be named without it."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise FedLoomError(f"--set must be <key>=<value>, got '{text}'")
    keys = key.split(".")
    if keys[0] in Study.model_fields and keys[0] not in Config.model_fields:
        keys = ["study", *keys]
    return Change(keys, parse(value, f"--set {key}"), text)


def origin(error: FedLoomError, files: Iterable[Path], changes: Iterable[Change]) -> str:
    """Return where the value was written that an error names: " (file, line n)" or the argument.

    It is "" if the error names no key of the config, or one that nobody wrote.
    """
    named = re.match(rf"{CONFIG} ([^\s:]+)", str(error))
    keys = getattr(error, "keys", None) or (named and named[1].split("."))
    if not keys:
        return ""
    for change in changes:
        if within(keys, change.keys) or within(change.keys, keys):
            return f" (--set {change.text})"
    return locate(files, keys, re.findall(r"'([^']+)'", str(error)))
