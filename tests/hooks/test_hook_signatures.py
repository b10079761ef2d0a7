"""A hook is stated twice: as a function in hookspecs.py, and as a method that callers use."""

import inspect

import pytest

from fedloom.hooks import hookspecs
from fedloom.hooks.run_hooks import HOOKS, Hooks


def test_every_hook_can_be_called():
    public = {name for name in vars(Hooks) if not name.startswith("_")}
    assert public == {*HOOKS, "takes"}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_called_with_the_arguments_of_its_specification(name):
    stated = inspect.signature(getattr(hookspecs, name))
    called = inspect.signature(getattr(Hooks, name))
    own, *arguments = called.parameters.values()
    assert own.name == "self"
    assert {each.kind for each in arguments} == {inspect.Parameter.KEYWORD_ONLY}
    types = [(each.name, each.annotation) for each in arguments]
    assert types == [(each.name, each.annotation) for each in stated.parameters.values()]
    assert called.return_annotation == stated.return_annotation


@pytest.mark.parametrize("name", HOOKS)
def test_a_call_passes_on_every_argument(name, monkeypatch):
    monkeypatch.setattr(Hooks, "_call", lambda self, hook, **given: (hook, given))
    given = {each: object() for each in inspect.signature(getattr(hookspecs, name)).parameters}
    assert getattr(object.__new__(Hooks), name)(**given) == (name, given)
