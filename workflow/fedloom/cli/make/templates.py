"""`fedloom init` and `fedloom new`: make a folder for a user's studies, or for a new method."""

import re
import shutil
from pathlib import Path

from fedloom.common.errors import FedLoomError
from fedloom.hooks.manifest import MethodManifest, discover_methods
from fedloom.hooks.options_file import refresh_options_file
from fedloom.machine.install import ROOT

IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")
NEW_STUDY = ROOT / "workflow/new_study"
BESIDE_THE_STUDY = ("profiles", "examples")


def new_folder(folder: Path) -> None:
    """Put a new study, the profiles and the examples into a folder, which need not be empty.

    Raises:
        FedLoomError: a file or folder that would be written exists already.
    """
    # refuse to overwrite
    names = [path.name for path in NEW_STUDY.iterdir()]
    for name in (*names, *BESIDE_THE_STUDY):
        place = folder / name
        if place.exists():
            raise FedLoomError(f"{place}: already exists; move it, or choose another folder")

    # copy
    shutil.copytree(NEW_STUDY, folder, ignore=IGNORED, dirs_exist_ok=True)
    for name in BESIDE_THE_STUDY:
        shutil.copytree(ROOT / name, folder / name, ignore=IGNORED, dirs_exist_ok=True)


def new_method(name: str) -> Path:
    """Copy the template to plugins/<name> of the current folder, with this name and its title.

    Raises:
        FedLoomError: the name is not valid, or exists already.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise FedLoomError(
            "the name of a method must consist of lower-case letters, digits and _, and begin with "
            f"a letter, got '{name}'; choose another name"
        )

    # no folder has this name yet, and no plugin that ships or is installed
    folder = Path("plugins", name)
    known = discover_methods()
    if folder.exists() or name in known.keys() | known.errors.keys():
        raise FedLoomError(f"{folder}: '{name}' already exists; choose another name")

    shutil.copytree(ROOT / "plugins/_template", folder, ignore=IGNORED)

    # method.toml gets the name, and loses the comment that describes the template
    manifest = folder / "method.toml"
    text = re.sub(r"\A(#.*\n)+", "", manifest.read_text())
    title = name.replace("_", " ").capitalize()
    text = text.replace('"template"', f'"{name}"').replace('"My method"', f'"{title}"')
    manifest.write_text(text)

    # options.py names the method too
    refresh_options_file(MethodManifest.of(manifest, None))
    return folder
