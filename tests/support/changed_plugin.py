"""A method that ships, with a line changed."""

import shutil

from fedloom.hooks import manifest


def copy_of(name, target):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(manifest.find_method(name).folder, target, ignore=ignored)
    return target


def plugin_with(tmp_path, old, new):
    folder = copy_of("head_tuning", tmp_path / "head_tuning")
    file = folder / "plugin.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return manifest.discover_methods(tmp_path)["head_tuning"]
