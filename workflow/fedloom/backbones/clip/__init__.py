"""CLIP models of open_clip."""

from fedloom.backbones.clip.model import FrozenCLIP, load

__all__ = ["FrozenCLIP", "load"]
