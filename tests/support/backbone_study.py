"""A study of one method on one backbone."""

from pathlib import Path

import yaml


def backbone_study(folder: Path, method: str, entry: dict) -> Path:
    """Write a study of a method on the backbone of an entry, `b`, and return its file."""
    keys = {
        "backbones": {"b": {"weights": "none"} | entry},
        "tables": {"t": {"kind": "accuracy"}},
        "select": {
            "datasets": ["glyphs"],
            "partitions": ["pathological"],
            "backbones": ["b"],
            "methods": [method],
            "tables": ["t"],
            "figures": [],
        },
    }
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(keys))
    return file
