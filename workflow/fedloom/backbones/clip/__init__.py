"""CLIP models of open_clip."""

from fedloom.machine.extras import require_extra

require_extra("open_clip")

from fedloom.backbones.clip.loading import load as load  # noqa: E402
