"""The type of a mapping that JSON, YAML or TOML holds."""

from typing import Any

# a value is text, a number, a truth value, None, a list or a mapping; a schema, or the code that
# wrote the mapping, says which of them a key has, so that its reader needs no check
JsonDict = dict[str, Any]
