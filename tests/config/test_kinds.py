"""The tables of kinds that ship are written out, and have every class that there is."""

import pkgutil
import re
from importlib import import_module

import pytest

from fedloom.config.kind_plugins import BASES, subclasses_in
from fedloom.config.kinds import KINDS_FROM_PLUGINS


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("source", "fedloom.data.sources"),
        ("scheme", "fedloom.data.schemes"),
        ("table", "fedloom.report.tables"),
        ("figure", "fedloom.report.figures"),
    ],
)
def test_every_class_of_a_kind_is_in_its_table(kind, package):
    """A kind is named after its class, in snake_case, so that a reader of a config finds it."""
    registry = KINDS_FROM_PLUGINS[kind]
    classes = []
    for file in pkgutil.iter_modules(import_module(package).__path__):
        classes += subclasses_in(import_module(f"{package}.{file.name}"), BASES[kind])
    assert set(registry.own.values()) == set(classes)
    for name, model in registry.own.items():
        assert name == re.sub(r"\B(?=[A-Z])", "_", model.__name__).lower()
    assert list(registry.own) == sorted(registry.own)
