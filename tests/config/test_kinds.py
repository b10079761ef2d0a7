"""The kinds that a package's modules have take their names from classes."""

from fedloom.config.kinds import Room
from fedloom.config.output_kinds import TableKind

CLASSES = """
from fedloom.config.output_kinds import RunsTable


class {0}(RunsTable):
    pass


class NoKind(Exception):
    pass
"""


def _room(folder, monkeypatch, **classes):
    """Return the room of a package with a class per module."""
    package = folder / folder.name
    package.mkdir()
    for module, name in classes.items():
        (package / f"{module}.py").write_text(CLASSES.format(name))
    monkeypatch.syspath_prepend(folder)
    return Room("table", package.name, TableKind).own


def test_the_name_of_a_kind_is_its_class_in_small_letters(tmp_path, monkeypatch):
    room = _room(tmp_path, monkeypatch, first="TwoWords", second="Word")
    assert list(room) == ["two_words", "word"], "neither the base nor other classes"
    assert room["two_words"].__module__.endswith(".first")
