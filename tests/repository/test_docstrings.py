"""Docstrings of tests, helpers and fixtures can be read without the names of their functions."""

import ast
import re

import pytest

from fedloom.machine.install import ROOT

# Sentences that begin with one of these words go on with the name of the function.
CONTINUES_A_NAME = (
    "Also|And|Any|Else|Here|How|Its?|Otherwise|Such|That|Their|These|They|This|Those"
    "|What|Whatever|Which|Who|Whose"
)
# Sentences that begin with one of these are whole if subject and verb follow a comma ...
INTRODUCES = "After|As|At|Before|By|For|From|If|In|Of|On|To|Until|Up|When|Where|While|With|Without"
# ... which none of these words does: they lengthen the introduction.
LENGTHENS = INTRODUCES.lower() + "|also|and|but|here|how|or|over|so|such|whatever|which|who|within"


def is_fragment(docstring: str) -> bool:
    """Return whether a docstring lacks a subject or a verb, by first word and commas."""
    text = re.sub(r"\([^)]*\)|`[^`]*`", "x", docstring)
    if re.match(rf"({CONTINUES_A_NAME})\b", text):
        return True
    whole = re.match(rf"[^:;.]*, (?!({LENGTHENS})\b)\w", text)
    return whole is None and re.match(rf"({INTRODUCES})\b", text) is not None


def is_signature(docstring: str) -> bool:
    """Return whether a docstring begins with a call, such as `run(name)`, and not with a verb."""
    return re.match(r"\w+\(.*?\)", docstring) is not None


def _functions(text: str):
    """Yield name and docstring of every function and class that has one."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node):
            yield node.name, ast.get_docstring(node)


def test_docstrings_are_whole_sentences():
    found = [
        f"{file.relative_to(ROOT)}: {name}: {docstring}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for name, docstring in _functions(file.read_text())
        if is_fragment(docstring) or is_signature(docstring)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "fragment",
    [
        "As in a container whose user has no home.",
        "In float64, with a mask.",
        "To the bit; the other order, which is rare, rounds otherwise.",
        "By the plugin (K, P), in bf16.",
        "Its keys are those of its source.",
        "What the readers of a table see of it.",
        "Otherwise, the job would begin anew.",
    ],
)
def test_fragments_are_found(fragment):
    assert is_fragment(fragment)


@pytest.mark.parametrize(
    "sentence",
    [
        "In bf16, three products are computed.",
        "In centralised training, as in the paper, the client of a round has all images.",
        "With `a, b`, selection is no part of the mechanism: epsilon is that of all clients.",
        "Return the adapter of a copy.",
        "There are three images.",
        "`fedloom run` leaves a record.",
    ],
)
def test_whole_sentences_are_none(sentence):
    assert not is_fragment(sentence) and not is_signature(sentence)


def test_signatures_are_found():
    assert is_signature("run(name, **options): a task and its hooks.")
