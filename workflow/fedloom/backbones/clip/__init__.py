"""CLIP models of open_clip."""

from fedloom.common.extras import require

require("open_clip")

from fedloom.backbones.clip.model import load as load  # noqa: E402
