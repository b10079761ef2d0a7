"""The types of values that JSON, YAML or TOML hold."""

from typing import Any

# a value that nothing has checked yet
JsonValue = None | bool | int | float | str | list | dict
# a mapping from names to such values. Its reader knows the type that each name has: a schema has
# checked the mapping, or FedLoom has written it.
JsonDict = dict[str, Any]
