"""What a release says of itself: the section of CHANGELOG.md that its tag names."""

import runpy
from pathlib import Path

import pytest

notes = runpy.run_path(str(Path(__file__).parents[2] / ".github/release_notes.py"))["notes"]
CHANGELOG = """# Changelog

## [0.2.0] - 2026

New.

### Mended

- b

## [0.1.0] - 2025

Old.
"""


def test_the_section_of_the_tags_version_alone():
    assert notes("v0.2.0", CHANGELOG, "0.2.0") == "New.\n\n### Mended\n\n- b"
    assert notes("v0.1.0", CHANGELOG, "0.1.0") == "Old."


@pytest.mark.parametrize("tag, version", [("v0.2.1", "0.2.0"), ("0.2.0", "0.2.0"), ("v1", "1")])
def test_another_tag_or_a_missing_section_ends_the_release(tag, version):
    with pytest.raises(SystemExit, match=version):
        notes(tag, CHANGELOG, version)
