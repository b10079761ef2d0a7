"""The types of values that JSON, YAML or TOML hold."""

from typing import Any

# one that nothing has checked yet
JsonValue = None | bool | int | float | str | list | dict
# a mapping from names to such values: a schema, or the code that wrote it, says which of them a
# key has, so that its reader needs no check
JsonDict = dict[str, Any]
