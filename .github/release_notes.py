"""Print the section of CHANGELOG.md for a release tag; fail if pyproject.toml disagrees."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(tag: str, changelog: str, version: str) -> str:
    """Return the text below the heading of a version, up to the next version.

    Raises:
        SystemExit: the tag is not `v` and the version, or the changelog has no such section.
    """
    if tag != f"v{version}":
        sys.exit(f"error: the tag must be v{version}, the version of pyproject.toml, got {tag}")
    section = re.search(rf"^## \[{re.escape(version)}\].*\n((?:(?!## ).*\n?)*)", changelog, re.M)
    if section is None:
        sys.exit(f"error: CHANGELOG.md has no section [{version}]; add it")
    return section[1].strip()


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(), project["version"]))
