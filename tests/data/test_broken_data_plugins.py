"""Sources and schemes that misbehave, or whose TOML is wrong, are one line."""

import numpy as np
import pytest

from data_plugin_cases import dropping, entry_of, source_code, write_plugin
from fedloom.config import kind_plugins
from fedloom.data import sources
from fedloom.data.partition import divide_dataset
from refusals import refused


@pytest.fixture
def drop(tmp_path, monkeypatch):
    """Return drop(*names), which makes these examples this process's plugins.

    drop(*names) returns the folder of the plugins.
    """
    return dropping(tmp_path, monkeypatch)


READ = "def read(settings):\n    return "


LABELS = "the source's labels"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1", ["own/plugin.py", "read(settings)"]),
        ("import nothing_of_that_name", ["own", "plugin.py", "nothing_of_that_name"]),
        (f"{READ}1 / 0", ["own/plugin.py:2", "ZeroDivisionError"]),
        (f"{READ}[1]", ["plugin.py", "ImageList", "list"]),
        (
            source_code().replace("[Item", "(1 / k for k in [0]) or [Item"),
            ["py:5", "ZeroDivisionError"],
        ),
        (source_code(n=7), ["labels, 8", "got fewer"]),
        (source_code(n=9), ["labels, 8", "got more"]),
        (source_code(labels=[0, 1] * 3 + [0, 2]), ["from 0 to 1", "got 2 for image 7"]),
        (source_code(labels=[0.5] * 8), [LABELS, "[8]", "float64"]),
        (source_code(labels=[[0, 1]] * 4), [LABELS, "[4, 2]", "int64"]),
        (source_code(load="np.zeros((4, 4))"), ["i: unreadable image"]),
        (source_code(load="open('nowhere')"), ["i: unreadable image", "Errno 2"]),
        (source_code(labels=[]), ["at least one image", "(me)"]),
    ],
)
def test_a_source_that_misbehaves_is_one_line(drop, tmp_path, code, words):
    write_plugin(drop(), "source", code)
    settings = entry_of("datasets", source="own").datasets["mine"].settings
    with refused(*words):
        sources.build_store("own", settings, tmp_path / "images.arrow")
    assert not list(tmp_path.glob("*images*"))


def divide_with(**settings):
    labels = np.tile(np.arange(4), 60)
    test = np.arange(240) % 3 == 0
    spec = {"scheme": "own", "held_out": 0, **settings}
    return divide_dataset(labels, test, np.full(240, "all"), spec, 0)


DIVIDE = "def divide(labels, settings, rng):\n    return "


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1", ["own/plugin.py", "divide(labels, settings, rng)"]),
        (f"{DIVIDE}settings['x']", ["plugin.py:2", "KeyError: 'x'"]),
        (f"{DIVIDE}labels[:3]", ["divide", "[1 2 0]", "160"]),
        (f"{DIVIDE}labels / 2", ["divide", "[0.5 "]),
        (f"{DIVIDE}0 * labels + 5", ["divide", "[5 5", "0..4"]),
    ],
)
def test_a_scheme_that_misbehaves_is_one_line(drop, code, words):
    write_plugin(drop(), "scheme", code)
    with refused(*words):
        divide_with(clients=5)


OWN = 'name = "own"\ndescription = "x"\n'


OPTION = 'type = "{type}"\ndescription = "y"\n{more}'


@pytest.mark.parametrize(
    ("kind", "toml", "words"),
    [
        ("source", 'name = "own"', ["description"]),
        ("source", "name = ", []),
        ("source", f"{OWN}[options.image_size]\n{OPTION}", ["options.image_size"]),
        ("source", f"{OWN}[options.source]\n{OPTION}", ["options.source", "rename"]),
        ("scheme", f"{OWN}[options.scheme]\n{OPTION}", ["options.scheme", "rename"]),
        ("scheme", f"{OWN}[options.beta]\n{OPTION}", ["options.beta.type", "numeric"]),
        ("scheme", f"{OWN}[options.beta]\n{OPTION}", ["options.beta.default"]),
    ],
)
def test_a_toml_file_that_is_wrong_is_one_line(tmp_path, kind, toml, words):
    values = {"type": "numeric" if "numeric" in words else "integer", "more": ""}
    if "options.beta.default" in words:
        values["more"] = 'default = "z"'
    write_plugin(tmp_path / "plugins", kind, "", toml.format(**values))
    with refused(f"plugins/own/{kind}.toml", *words):
        kind_plugins.plugins_of_type(kind, tmp_path / "plugins")["own"]


def test_an_option_may_have_the_name_of_another_section_s_key(tmp_path):
    option = OPTION.format(type="integer", more="default = 1")
    write_plugin(tmp_path / "plugins", "source", "", f"{OWN}[options.scheme]\n{option}")
    plugin = kind_plugins.plugins_of_type("source", tmp_path / "plugins")["own"]
    assert "scheme" in plugin.keys().model_fields
