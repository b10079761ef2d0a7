"""Check that a backbone gives what a method needs of it, before any job runs."""

from collections.abc import Iterable

from fedloom.common.key_path import CONFIG, InvalidKeyError
from fedloom.config.settings import BackboneSettings, Settings
from fedloom.hooks.manifest import MethodManifest, find_method
from fedloom.planning.resources.backbone_sizes import sizes
from fedloom.planning.run_labels import Run


def check_backbone_needs(settings: Settings, runs: Iterable[Run]) -> None:
    """Check that each run's backbone can be built, and gives what the run's method needs of it.

    Raises:
        InvalidKeyError: a backbone cannot be built, a ViT has no class token, or the image tower of
            a CLIP gives no patches, or has no blocks that a method can enter.
    """
    pairs = {(run.backbone, run.method) for run in runs}
    labels = {label for label, _ in pairs}
    for label in sorted(labels):
        sizes(settings.backbones[label])

    for label, method in sorted(pairs):
        backbone = settings.backbones[label]
        plugin = find_method(settings.methods[method].plugin)
        if backbone.family == "vit":
            _check_vit(backbone, method, plugin)
        elif backbone.family == "clip":
            _check_clip(backbone, method, plugin)


def _check_vit(backbone: BackboneSettings, method: str, plugin: MethodManifest) -> None:
    """Raise an InvalidKeyError if a method needs a class token, and a ViT has none."""
    reason = plugin.needs_class_token
    if reason and not sizes(backbone).has_class_token:
        raise _refused(
            backbone,
            f"must be a ViT with a class token for the method {method}, since {reason}, got "
            f"{backbone.settings['name']}, which has none; choose a ViT that has one, or another "
            "method",
        )


def _check_clip(backbone: BackboneSettings, method: str, plugin: MethodManifest) -> None:
    """Raise an InvalidKeyError if the image tower lacks what a method reads or enters."""
    needs_patches = "patches" in plugin.needs
    if not (needs_patches or plugin.enters_image_tower):
        return

    counted = sizes(backbone)
    name = backbone.settings["name"]
    if needs_patches and not counted.has_patches:
        raise _refused(
            backbone,
            f"must be a CLIP whose image tower gives features of patches, which the method "
            f"{method} reads, got {name}, whose tower gives only those of whole images; choose a "
            "ViT that is read at its class token, or another method",
        )
    if plugin.enters_image_tower and not counted.depth:
        raise _refused(
            backbone,
            f"must be a CLIP whose image tower has transformer blocks, into which the method "
            f"{method} puts its parts, got {name}, which has none; choose a CLIP with a ViT, or "
            "another method",
        )


def _refused(backbone: BackboneSettings, sentence: str) -> InvalidKeyError:
    """Return the error of a backbone's name."""
    return (CONFIG / "backbones" / backbone.label / "name").error(sentence)
