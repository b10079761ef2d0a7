"""Say which wrappers do not suit a method, their order, or a test, and why."""

import json
from collections.abc import Sequence

from fedloom.hooks.manifest import MethodManifest
from fedloom.hooks.manifest_sections import Condition, holds


def refused_wrappers(
    method: MethodManifest, options: dict, wrappers: Sequence[MethodManifest]
) -> str | None:
    """Return why a method cannot have these wrappers in this order, and what to change.

    Return None if it can have them. The innermost wrapper comes first. `options` are all options of
    the method.

    After a wrapper that preserves only the sum of the updates, a single update means nothing.
    Three rules follow:

    1. The method must use only the mean of the updates.
    2. No other wrapper may read or change an update.
    3. A wrapper that drops updates must be listed after it. On the server the last wrapper
       comes first, and so drops the updates before their sum is restored.

    A wrapper may add to the logits in training only if the method takes such offsets.
    """
    for wrapper in wrappers:
        reason = _refused_offsets(method, options, wrapper)
        if reason is not None:
            return reason

    for position, mask in enumerate(wrappers):
        if mask.preserves is None:
            continue

        # the method must use the mean of the updates alone
        line = f"{mask.name} preserves the sum of the updates alone, "
        if method.aggregation_with(options) is None:
            return (
                f"{line}but with these options {method.name} declares no aggregation in its "
                f"method.toml: it may use each update; remove {mask.name}"
            )

        # no other wrapper may read or change an update, or drop one too early
        for other in (*wrappers[:position], *wrappers[position + 1 :]):
            if other.updates == "read":
                return f"{line}and {other.name} reads or changes each; remove one of the two"
        for other in wrappers[:position]:
            if other.updates == "dropped":
                line += f"and {other.name}, which comes before it, drops some of them afterwards"
                return f"{line}; list {mask.name} before {other.name}"
    return None


def _refused_offsets(method: MethodManifest, options: dict, wrapper: MethodManifest) -> str | None:
    """Return why the method cannot have what a wrapper adds to logits in training, or None."""
    own = wrapper.complete_options({})
    if not holds(wrapper.adds_offsets_in_training, own):
        return None
    if not method.trained:
        reason = f"{method.name} trains nothing"
    elif not holds(method.takes_logit_offsets, options):
        reason = (
            f"with these options clients of {method.name} do not train by a plain softmax of "
            "all classes on their own images (takes_logit_offsets)"
        )
    else:
        return None
    what = _with_values(wrapper.name, wrapper.adds_offsets_in_training)
    return f"{what} adds to the logits in training, but {reason}; change or remove it"


def why_unseen_classes_lack_offsets(wrapper: MethodManifest) -> str | None:
    """Return why a wrapper, with its default options, does not suit a test on other classes.

    Return None if it does.
    """
    if not holds(wrapper.adds_offsets_at_test, wrapper.complete_options({})):
        return None
    what = _with_values(wrapper.name, wrapper.adds_offsets_at_test)
    return f"{what} adds to the logits at test, by the client's shares of its own classes"


def _with_values(name: str, condition: Condition) -> str:
    """Return a wrapper's name with the values of options that a condition names."""
    if isinstance(condition, bool):
        return name
    values = ", ".join(f"{key}: {json.dumps(value)}" for key, value in condition.items())
    return f"{name} with {values}"
