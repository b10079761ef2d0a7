"""`fedloom init` and `fedloom new`: a folder for a user's studies, and one of a plugin."""

import re
import shutil
from pathlib import Path

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.hooks.manifest import discover

IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


def new_folder(folder: Path) -> None:
    """Make a folder of a new study, with the profiles and the examples."""
    if folder.exists():
        raise FedLoomError(f"{folder}: is there already; name a new folder")
    for source, place in (("workflow/new_study", "."), ("profiles",) * 2, ("examples",) * 2):
        shutil.copytree(ROOT / source, folder / place, ignore=IGNORED)


def new_method(name: str) -> Path:
    """Copy the template to plugins/<name> of the current folder, under this name and title."""
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        line = f"must be of small letters, digits and _, and begin with a letter, got '{name}'"
        raise FedLoomError(f"a method's name {line}")
    folder, known = Path("plugins", name), discover()
    if folder.exists() or name in known.keys() | known.broken.keys():
        raise FedLoomError(f"{folder}: '{name}' is there already; take another name")
    shutil.copytree(ROOT / "plugins/_template", folder, ignore=IGNORED)
    manifest = folder / "method.toml"
    text = re.sub(r"\A(#.*\n)+", "", manifest.read_text())  # what the template is
    title = name.replace("_", " ").capitalize()
    text = text.replace('"template"', f'"{name}"').replace('"My method"', f'"{title}"')
    manifest.write_text(text)
    return folder
