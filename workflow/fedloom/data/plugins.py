"""Call sources and schemes of plugins: what they raise, or return amiss, becomes one line."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedloom.common.errors import FedLoomError
from fedloom.config.data_plugins import DataPlugin
from fedloom.config.datasets import described
from fedloom.config.kind_plugins import find
from fedloom.data.image_list import ImageList, Item
from fedloom.data.schemes.base import Divide, Group
from fedloom.hooks.hook_caller import guarded
from fedloom.hooks.importing import import_plugin


def read(source: str, settings: dict[str, Any]) -> ImageList:
    """Return the images that a plugin's source lists."""
    plugin = find("source", source)
    function = _function_of(plugin, "read", "settings")
    images = guarded(lambda: function(settings), [plugin], "read")
    if not isinstance(images, ImageList):
        kind = type(images).__name__
        raise FedLoomError(f"{plugin.file}: read must return an ImageList, got {kind}")
    if plugin.paths:
        about = described(settings, plugin.paths)
        images = replace(images, provenance=f"{images.provenance}: {about}")

    def items() -> Iterator[Item]:
        iterator = iter(guarded(images.items, [plugin], "read"))
        while (item := guarded(lambda: next(iterator, None), [plugin], "read")) is not None:
            yield item

    return replace(images, items=items)


def groups(scheme: str, domains: np.ndarray, settings: dict[str, Any]) -> list[Group]:
    """Return the groups of a plugin's scheme, whose functions are checked when they are called."""
    plugin = find("scheme", scheme)
    if not plugin.by_domain:
        divide = _function_of(plugin, "divide", "labels, settings, rng")
        return [Group("", np.ones(len(domains), bool), _checked(plugin, divide), settings)]
    function = _function_of(plugin, "groups", "domains, settings")
    groups = guarded(lambda: function(domains, settings), [plugin], "groups")
    if not isinstance(groups, list) or not all(isinstance(group, Group) for group in groups):
        raise FedLoomError(f"{plugin.file}: groups must return a list of Group")
    held = np.zeros(len(domains), int)
    for group in groups:
        if np.shape(group.images) != held.shape or np.asarray(group.images).dtype != bool:
            raise FedLoomError(f"{plugin.file}: images of a Group must be bool [{len(held)}]")
        if not isinstance(group.settings.get("clients"), int):
            raise FedLoomError(f"{plugin.file}: settings of a Group need `clients`, their number")
        held += group.images
    if (held != 1).any():
        image = (held != 1).argmax()
        line = f"image {image} must be in one group, got {held[image]} groups"
        raise FedLoomError(f"{plugin.file}: {line}")
    return [group._replace(divide=_checked(plugin, group.divide)) for group in groups]


def _function_of(plugin: DataPlugin, name: str, arguments: str) -> Callable[..., Any]:
    """Import a plugin and return its function of that name, which takes these arguments."""
    function = getattr(import_plugin(plugin), name, None)
    if not callable(function):
        line = f"{plugin.file}: a {plugin.kind} needs the function {name}({arguments})"
        raise FedLoomError(line)
    return function


def _checked(plugin: DataPlugin, divide: Divide) -> Divide:
    """Return a plugin's `divide`, such that it returns a client for every image or fails."""

    def call(labels: np.ndarray, settings: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
        owner = np.asarray(guarded(lambda: divide(labels, settings, rng), [plugin], "divide"))
        if owner.shape != labels.shape or owner.dtype.kind not in "iu":
            raise FedLoomError(
                f"{plugin.file}: divide must return a client for each of {len(labels)} training "
                f"images, got an array {[*owner.shape]} of {owner.dtype}"
            )
        clients = settings["clients"]
        outside = owner[(owner < 0) | (owner >= clients)]
        if len(outside):
            line = f"divide must return clients in 0..{clients - 1}, got client {outside[0]}"
            raise FedLoomError(f"{plugin.file}: {line}")
        return owner

    return call
