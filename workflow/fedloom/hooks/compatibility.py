"""Which wrappers can stand around a method together, by what their method.toml declare."""

from collections.abc import Sequence
from typing import Any

from fedloom.hooks.manifest import Plugin


def refusal(method: Plugin, options: dict[str, Any], wrappers: Sequence[Plugin]) -> str | None:
    """Return why the method cannot have these wrappers in this order, or None if it can.

    A wrapper that preserves the sum of the updates alone (`preserves = "sum"`) hands on updates
    that mean nothing by themselves. So the method must use their mean alone (`aggregation`), no
    other wrapper may read or change an update, and one that drops updates must stand after it: on
    the server the last wrapper comes first, so that it drops them before their sum is restored.

    Args:
        options: the method's, all of them filled in.
        wrappers: the innermost first, as a study names them.

    Returns:
        A line that says what to change.
    """
    for position, mask in enumerate(wrappers):
        if mask.preserves is None:
            continue
        line = f"{mask.name} preserves the sum of the updates alone, "
        if method.aggregation_with(options) is None:
            return (
                f"{line}but with these options {method.name} declares no aggregation in its "
                f"method.toml: it may use each update; remove {mask.name}"
            )
        for other in wrappers:
            if other is not mask and other.updates == "read":
                return f"{line}and {other.name} reads or changes each; remove one of the two"
        for other in wrappers[:position]:
            if other.updates == "dropped":
                return (
                    f"{line}and {other.name}, which stands before it, drops some of them "
                    f"afterwards; list {mask.name} before {other.name}"
                )
    return None
