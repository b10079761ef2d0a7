"""The line in which an error ends: printable, of a bounded length, and whole where it matters."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from fedloom.common.errors import (
    BEGINNING_CHARACTERS,
    END_CHARACTERS,
    FedLoomError,
    escape_unprintable,
)
from fedloom.machine.exits import one_line_errors
from fedloom.planning import load_plan


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\x1b[31m\x07\nb", "a\\x1b[31m\\x07 b"),
        ("  two \r\n lines\u2028three", "two lines three"),
        ("a tab\tin a name", "a tab\\tin a name"),
        ("Größe café 猫", "Größe café 猫"),
        ("\u202egnp.exe", "\\u202egnp.exe"),  # turns the direction of writing
    ],
)
def test_a_terminal_gets_no_control_characters(text, line):
    assert escape_unprintable(text) == line
    assert str(FedLoomError(text)) == line


def test_a_long_line_keeps_its_place_and_its_cure():
    said = str(FedLoomError("place " + "x" * 5000 + " cure"))
    assert said.startswith("place xxx")
    assert said.endswith("xxx cure")
    assert len(said) == BEGINNING_CHARACTERS + len(" ... ") + END_CHARACTERS
    assert str(FedLoomError("y" * (BEGINNING_CHARACTERS + END_CHARACTERS))) == "y" * (
        BEGINNING_CHARACTERS + END_CHARACTERS
    )


def test_the_name_of_a_file_that_the_system_refuses_is_legible(caplog):
    with pytest.raises(SystemExit) as stopped, one_line_errors():
        Path("gone\x1b[31m\nred").read_bytes()
    assert stopped.value.code == 2
    assert "gone\\x1b[31m red: No such file" in caplog.text


def test_an_error_of_our_own_is_in_the_log_with_its_traceback(caplog):
    """A job logs its error, because a log without an error means that the job was killed."""
    caplog.set_level(logging.DEBUG, "fedloom")
    with pytest.raises(IndexError), one_line_errors():
        [].pop()
    assert "error: IndexError: pop from empty list" in caplog.text
    assert "Traceback" in caplog.text


def test_notes_on_a_study_are_legible(tmp_path, monkeypatch, capsys):
    """Labels with control characters are refused, but a note may quote any value of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(load_plan.LAUNCHER, raising=False)
    told = replace(load_plan.read_plan().settings, notes=("a note \x1b[31m in red",))
    monkeypatch.setattr(load_plan, "resolve", lambda *_: told)
    load_plan.read_plan()
    assert "note: a note \\x1b[31m in red\n" in capsys.readouterr().err
