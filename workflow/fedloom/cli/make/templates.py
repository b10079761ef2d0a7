"""`fedloom init` and `fedloom new`: a folder for a user's studies, and one of a plugin."""

import re
import shutil
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.hooks.manifest import discover
from fedloom.machine.install import ROOT

IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


def new_folder(folder: Path) -> None:
    """Put a new study, the profiles and the examples into a folder, which need not be empty."""
    sources = {"workflow/new_study": ".", "profiles": "profiles", "examples": "examples"}
    names = [path.name for path in (ROOT / "workflow/new_study").iterdir()]
    for place in (folder / name for name in (*names, "profiles", "examples")):
        if place.exists():
            raise FedLoomError(f"{place}: is there already; move it, or name another folder")
    for source, name in sources.items():
        shutil.copytree(ROOT / source, folder / name, ignore=IGNORED, dirs_exist_ok=True)


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
