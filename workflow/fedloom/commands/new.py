"""`fedloom new <method>`: a plugin's folder, made of the template."""

import re
import shutil
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.schema import Identifier
from fedloom.hooks.manifest import discover

TEMPLATE = ROOT / "plugins/_template"


def new_method(name: str) -> Path:
    """Copy the template to plugins/<name> of the current folder, under this name and title."""
    try:
        TypeAdapter(Identifier).validate_python(name)
    except ValidationError:
        line = f"must be of small letters, digits and _, and begin with a letter, got '{name}'"
        raise FedLoomError(f"a method's name {line}") from None
    folder, known = Path("plugins", name), discover()
    if folder.exists() or name in known.keys() | known.broken.keys():
        raise FedLoomError(f"{folder}: '{name}' is there already; take another name")
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    manifest = folder / "method.toml"
    text = re.sub(r"\A(#.*\n)+", "", manifest.read_text())  # what the template is
    title = name.replace("_", " ").capitalize()
    text = text.replace('"template"', f'"{name}"').replace('"My method"', f'"{title}"')
    manifest.write_text(text)
    return folder
