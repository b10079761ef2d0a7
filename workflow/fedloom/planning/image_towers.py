"""Check that the image tower of a CLIP gives what a method needs, before any job runs."""

from collections.abc import Iterable

from fedloom.common.key_path import CONFIG
from fedloom.config.settings import Settings
from fedloom.hooks.manifest import find_method
from fedloom.planning.resources.backbone_sizes import sizes
from fedloom.planning.run_labels import Run


def check_image_towers(settings: Settings, runs: Iterable[Run]) -> None:
    """Check the backbone of each run of a method that needs more than features of images.

    Raises:
        InvalidKeyError: the image tower gives no patches, or has no blocks that a method can enter.
    """
    for label, method in sorted({(run.backbone, run.method) for run in runs}):
        backbone = settings.backbones[label]
        plugin = find_method(settings.methods[method].plugin)
        needs_patches = "patches" in plugin.needs
        if backbone.family != "clip" or not (needs_patches or plugin.enters_image_tower):
            continue

        name = backbone.settings["name"]
        counted = sizes(backbone)
        if needs_patches and not counted.has_patches:
            raise (CONFIG / "backbones" / label / "name").error(
                f"must be a CLIP whose image tower gives features of patches, which the method "
                f"{method} reads, got {name}, whose tower gives only those of whole images; choose "
                "a ViT that is read at its class token, or another method"
            )
        if plugin.enters_image_tower and not counted.depth:
            raise (CONFIG / "backbones" / label / "name").error(
                f"must be a CLIP whose image tower has transformer blocks, into which the method "
                f"{method} puts its parts, got {name}, which has none; choose a CLIP with a ViT, "
                "or another method"
            )
