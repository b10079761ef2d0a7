"""The schemes that divide training images over clients: one module per scheme, and plugins.

A module has `divide(labels, settings, rng)`: from the labels [N] of the training images, an entry
of the config's `partitions` and a stream of random numbers to the client [N] of every image. It may
have `groups(domains, settings)` instead, which says what is divided by itself, and how.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Divide = Callable[[np.ndarray, dict[str, Any], np.random.Generator], np.ndarray]


class Group(NamedTuple):
    """Images that are divided by themselves.

    Attributes:
        name: as an error has it, after "client 3"; " of domain 'ink'", for one.
        images: bool [N] of all images.
        divide: returns the client of every training image of the group, from 0 on.
        settings: what `divide` takes; `clients` is the number of the group's clients.
    """

    name: str
    images: np.ndarray
    divide: Divide
    settings: dict[str, Any]


def groups(domains: np.ndarray, scheme: str, settings: dict[str, Any]) -> list[Group]:
    """Return what the scheme divides by itself, the whole dataset unless it says otherwise.

    Args:
        domains: str [N] of the dataset's images.
        scheme: the module's name, or a plugin's.
    """
    name = f"fedloom.data.schemes.{scheme}"
    if importlib.util.find_spec(name) is None:
        return importlib.import_module("fedloom.data.plugins").groups(scheme, domains, settings)
    module = importlib.import_module(name)
    if hasattr(module, "groups"):
        return module.groups(domains, settings)
    return [Group("", np.ones(len(domains), bool), module.divide, settings)]
