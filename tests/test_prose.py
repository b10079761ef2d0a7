"""The patterns in .prose, by which `make lint` refuses sentences that are not plain English."""

import re

import pytest

from fedloom.machine.install import ROOT

PATTERNS = [re.compile(line) for line in (ROOT / ".prose").read_text().splitlines()]


def _refused(sentence: str) -> bool:
    return any(pattern.search(sentence) for pattern in PATTERNS)


@pytest.mark.parametrize(
    "sentence",
    [
        "'x' is no whole number from 1 on",
        "What is trained is there about five times.",
        "Everything is cached, but for the labels.",
        "A method may bring backbones of its own.",
        "They share a folder with a plugin of ours.",
        "so many clients are evaluated after rounds",
        "the images and those of which nothing is known",
        "a grid that is none",
        "All that the steps need is on its way.",
        "The digest of what bears on the result.",
        "The key stands in the config.",
        "A job goes on after its last round.",
        "Whoever waits there imports for itself.",
        "Heads start at zero, as those of other methods.",
    ],
)
def test_the_dialect_is_refused(sentence):
    assert _refused(sentence)


def test_no_pattern_matches_every_line():
    """An empty line in .prose would."""
    assert not any(pattern.search("") for pattern in PATTERNS)
