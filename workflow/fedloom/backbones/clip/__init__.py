"""CLIP models of open_clip."""

from fedloom.common.extras import require

require("open_clip")

from fedloom.backbones.clip.model import FrozenCLIP, load  # noqa: E402

__all__ = ["FrozenCLIP", "load"]
