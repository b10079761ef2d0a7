"""Call the sources and schemes of plugins; exceptions and wrong results become FedLoomErrors."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from fedloom.common.errors import FedLoomError, one_line, shorten
from fedloom.common.json_types import JsonDict
from fedloom.config.datasets import describe_listing
from fedloom.config.kind_plugins import ManifestWithOptions, plugins_of_type
from fedloom.data.image_list import ImageList, Item
from fedloom.hooks.loader import import_plugin
from fedloom.hooks.plugin_code import run_plugin_code


def read(source: str, settings: JsonDict) -> ImageList:
    """Return the images that a plugin's source lists."""
    # what the plugin lists
    plugin = plugins_of_type("source")[source]
    function = _plugin_function(plugin, "read", "settings")
    images = run_plugin_code(lambda: function(settings), [plugin], "read")
    if not isinstance(images, ImageList):
        type_name = type(images).__name__
        raise FedLoomError(f"{plugin.file}: read must return an ImageList, got {type_name}")

    if plugin.paths:
        about = describe_listing(settings, plugin.paths)
        images = replace(images, provenance=f"{images.provenance}: {about}")

    def items() -> Iterator[Item]:
        """Yield the plugin's items; an exception while it lists them names the plugin."""
        iterator = iter(run_plugin_code(images.items, [plugin], "read"))
        while (item := run_plugin_code(lambda: next(iterator, None), [plugin], "read")) is not None:
            yield item

    return replace(images, items=items)


def divide(
    scheme: str, labels: np.ndarray, settings: JsonDict, rng: np.random.Generator
) -> np.ndarray:
    """Divide training images with a plugin's scheme; return the client of each image, [N].

    Raises a FedLoomError if the plugin does not return a client in range for each label [N].
    """
    plugin = plugins_of_type("scheme")[scheme]
    function = _plugin_function(plugin, "divide", "labels, settings, rng")
    owner = np.asarray(run_plugin_code(lambda: function(labels, settings, rng), [plugin], "divide"))

    # a client in range for each image
    clients = settings["clients"]
    integers = owner.dtype.kind in "iu"
    if owner.shape == labels.shape and integers and ((owner >= 0) & (owner < clients)).all():
        return owner
    raise FedLoomError(
        f"{plugin.file}: divide must return a client in 0..{clients - 1} for each of "
        f"{len(labels)} training images, got {shorten(one_line(owner), 60)}"
    )


def _plugin_function(
    plugin: ManifestWithOptions, name: str, arguments: str
) -> Callable[..., object]:
    """Import a plugin and return its function `name`; an error tells which `arguments` it needs."""
    function = getattr(import_plugin(plugin), name, None)
    if not callable(function):
        raise FedLoomError(
            f"{plugin.file}: a {plugin.plugin_type} needs the function {name}({arguments})"
        )
    return function
