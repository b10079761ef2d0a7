"""A tiny ViT of a first, a middle and a last block: checks of it take half the time of twelve."""

from functools import cache
from typing import Any

from fedloom.contract import tiny
from fedloom.contract.tiny import tiny_backbone, tiny_vit
from fedloom.hooks import manifest

# options of the first two name blocks behind the third; three are too few for the last to learn
DEEP = ("pep_fedpt", "sgpt", "singleset_vpt")


@cache
def _shallow(family: str, width: int = 16) -> Any:
    return tiny_vit(width, depth=3) if family == "vit" else tiny_backbone(family, width)


def backbone(name: str) -> Any:
    """Return a backbone for a method: of three blocks, or for DEEP of twelve."""
    family = str(manifest.find_method(name).family)
    return tiny_backbone(family) if name in DEEP else _shallow(family)


def check_on(monkeypatch, *names: str) -> None:
    """Let the contract check these methods on such backbones."""
    if not set(names) & set(DEEP):
        monkeypatch.setattr(tiny, "tiny_backbone", _shallow)
