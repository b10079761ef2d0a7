"""`options.py` of a method declares its options for editors, as method.toml has them."""

import pytest

from fedloom.hooks.manifest import MethodManifest, discover_methods
from fedloom.hooks.options_file import MARK, options_text, refresh_options_file, type_annotation
from fedloom.machine.install import ROOT

METHOD = """
kind = "method"
name = "mine"
title = "Mine"
family = "vit"
trained = false

[paper]
citation = "A"
"""
OPTION = """
[options.share]
type = ["number", "null"]
default = 0.5
description = "share of images"
"""

SHIPPED = [
    *discover_methods().values(),
    *discover_methods(ROOT / "examples/methods").values(),
    MethodManifest.of(ROOT / "plugins/_template/method.toml", None),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write a method with an option into the current folder's `plugins`; return its folder."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "plugins/mine"
    own.mkdir(parents=True)
    (own / "method.toml").write_text(METHOD + OPTION)
    return own


def plugin_of(folder, module=None):
    return MethodManifest.of(folder / "method.toml", module)


@pytest.mark.parametrize(
    ("schema", "annotation"),
    [
        ({"type": "boolean"}, "bool"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "string"}, "str"),
        ({"type": "string", "enum": ["a", 'b"']}, 'Literal["a", "b\\""]'),
        ({"type": ["string", "null"], "enum": ["a", None]}, 'Literal["a"] | None'),
        ({"type": "number", "enum": [0.5, 1.0]}, "float"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"type": "array", "items": {"enum": ["q", "k"]}}, 'list[Literal["q", "k"]]'),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": ["null", "integer", "string"]}, "int | str | None"),
    ],
)
def test_the_type_of_an_option_follows_from_its_schema(schema, annotation):
    assert type_annotation(schema) == annotation


def test_a_class_has_a_field_with_type_and_docstring_per_option(folder):
    assert options_text(plugin_of(folder)) == (
        '"""The options of mine.\n\n'
        "`fedloom check` writes this file from method.toml.\n"
        '"""\n\n'
        "from dataclasses import dataclass\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Options:\n"
        '    """The class of task.options."""\n\n'
        "    share: float | None\n"
        '    """Share of images."""\n'
    )


@pytest.mark.parametrize("plugin", SHIPPED, ids=lambda plugin: plugin.name)
def test_the_files_that_ship_are_those_that_would_be_written(plugin):
    file = plugin.folder / "options.py"
    if plugin.option_schemas:
        assert file.read_text() == options_text(plugin)
    else:
        assert not file.exists()


def test_the_file_is_written_once_and_again_when_an_option_changes(folder):
    file = folder / "options.py"
    assert refresh_options_file(plugin_of(folder)) == file
    assert refresh_options_file(plugin_of(folder)) is None
    (folder / "method.toml").write_text(METHOD + OPTION.replace("share", "part"))
    assert refresh_options_file(plugin_of(folder)) == file
    assert "    part: float | None" in file.read_text()


def test_a_method_without_options_has_an_importable_class_of_options(folder):
    refresh_options_file(plugin_of(folder))
    (folder / "method.toml").write_text(METHOD)
    refresh_options_file(plugin_of(folder))
    assert (folder / "options.py").read_text().endswith('"""The class of task.options."""\n')


def test_a_file_of_a_person_is_left_alone(folder):
    text = f'"""My options."""\n# {MARK}\n'
    (folder / "options.py").write_text(text)
    assert refresh_options_file(plugin_of(folder)) is None
    assert (folder / "options.py").read_text() == text


def test_no_file_is_written_for_installed_plugins_other_folders_and_no_options(
    folder, tmp_path, monkeypatch
):
    assert refresh_options_file(plugin_of(folder, "their.package")) is None
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path / "plugins")
        assert refresh_options_file(plugin_of(folder)) is None
    (folder / "method.toml").write_text(METHOD)
    assert refresh_options_file(plugin_of(folder)) is None
    assert not (folder / "options.py").exists()
