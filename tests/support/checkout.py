"""Copies of what a study runs from, for tests that change or damage it."""

import shutil
from pathlib import Path

from fedloom.machine.install import ROOT


def copy_to(folder: Path) -> Path:
    """Copy Snakefile, config, workflow, plugins and profiles of this checkout; return `folder`."""
    for name in ("workflow", "plugins", "profiles"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(ROOT / name, folder / name)
    return folder
