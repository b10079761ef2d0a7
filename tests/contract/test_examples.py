"""The examples: nine methods of others as plugins, short, by public names, right, installable."""

import ast

import pytest

import three_blocks
from example_runs import EXAMPLES, plugin
from fedloom.contract import driver
from fedloom.hooks import manifest
from fedloom.machine.install import ROOT

pytestmark = pytest.mark.slow


METHODS = ("apfl_prompts", "fedbabu_prompts", "fedem_heads", "fedrep_prompts", "ifca_heads")


WRAPPERS = ("krum_receive", "masks", "power_of_choice", "topk")


def test_the_examples_are_those_of_the_guide():
    assert sorted(EXAMPLES) == sorted((*METHODS, *WRAPPERS))
    guide = (ROOT / "docs/writing-a-method.md").read_text()
    assert all(f"`examples/methods/{name}`" in guide for name in EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_writes_to_none_of_its_arguments(name):
    """test_house.py checks that examples call public names alone."""
    text = (EXAMPLES[name] / "plugin.py").read_text()
    assert len(text.splitlines()) <= 80
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            assert not any(isinstance(target, ast.Attribute) for target in node.targets)
    described = ast.get_docstring(ast.parse(text))
    assert any(word in described for word in ("Algorithm", "Section")) or name == "topk"


@pytest.mark.parametrize("check", driver.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_the_contract(name, check, tmp_path, monkeypatch):
    three_blocks.check_on(monkeypatch, name)
    check(plugin(name), tmp_path)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_keeps_the_contract(name, monkeypatch):
    three_blocks.check_on(monkeypatch)
    assert "around head_tuning" in driver.check(plugin(name), [manifest.find_method("head_tuning")])
