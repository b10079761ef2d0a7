"""Find the weights of a model's backbone, and check that they are those it was trained with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedloom.backbones.backbone import Backbone, weights_digest
from fedloom.common.errors import FedLoomError
from fedloom.common.json_types import JsonDict
from fedloom.common.receipts import sha256
from fedloom.config.kind_plugins import path_keys
from fedloom.config.settings import BackboneSettings, local_weights
from fedloom.machine.install import ROOT

# the folder of all weights that ship with FedLoom
SHIPPED = ROOT / "workflow"


def with_precision(backbone: BackboneSettings, precision: str | None) -> BackboneSettings:
    """Return a backbone that computes in another precision; None: in its own."""
    if precision is None:
        return backbone
    return replace(backbone, settings=backbone.settings | {"precision": precision})


def with_weights_among(backbone: BackboneSettings, files: Sequence[Path]) -> BackboneSettings:
    """Return a backbone with the first of these files that exists as its weights.

    If none exists, or the weights are no file, the backbone stays as it is.
    """
    if local_weights(backbone) is None:
        return backbone
    for file in files:
        if file.is_file():
            found = {"weights": str(file.absolute())}
            return replace(backbone, settings=backbone.settings | found)
    return backbone


def with_files_below(backbone: BackboneSettings, root: Path) -> BackboneSettings:
    """Return a backbone whose other files lie in `root`, at their paths or by their names.

    They are a local tokenizer, and what options of a plugin name. Where neither path exists, the
    key stays as it is.
    """
    found = JsonDict()
    for key in path_keys(backbone.library):
        if not backbone.settings.get(key):
            continue
        path = Path(backbone.settings[key])
        for place in (root / path.name, root / path):
            if place.exists():
                found[key] = str(place.absolute())
    return replace(backbone, settings=backbone.settings | found)


def is_shipped(backbone: BackboneSettings) -> bool:
    """Return True if the weights of a backbone are a file that ships with FedLoom."""
    file = local_weights(backbone)
    return file is not None and file.resolve().is_relative_to(SHIPPED)


def without_folders(backbone: BackboneSettings) -> BackboneSettings:
    """Return a backbone whose keys say nothing about the folders of the one who trained it.

    Weights that ship with FedLoom have their path below ROOT. Any other file of weights, and the
    files that other keys name, have their name alone.
    """
    shown = JsonDict()
    file = local_weights(backbone)
    if file is not None:
        shown["weights"] = file.name
        if is_shipped(backbone):
            shown["weights"] = str(file.resolve().relative_to(ROOT))
    for key in path_keys(backbone.library):
        if backbone.settings.get(key):
            shown[key] = Path(backbone.settings[key]).name
    return replace(backbone, settings=backbone.settings | shown)


def check_weights(
    where: Path, settings: BackboneSettings, backbone: Backbone, trained_with: str | None
) -> None:
    """Check the weights of a backbone.

    Args:
        where: the file that states their digest, with which an error begins.
        settings: the backbone's settings.
        backbone: the backbone with its weights.
        trained_with: the sha256 of the weights that a run was trained with; None: untrained ones.

    Raises:
        FedLoomError: they are others.
    """
    if trained_with is None:
        return

    # the digest of a file, or that of a hub's tensors
    origin = settings.settings["weights"]
    file = local_weights(settings)
    if file is None:
        found = weights_digest(backbone)
    else:
        found = sha256(file)
    if found != trained_with:
        raise FedLoomError(
            f"{where}: the weights '{origin}' of backbone {settings.label} must be those that the "
            f"model was trained with (sha256 {trained_with[:12]}...), got others "
            f"({found[:12]}...); put those back"
        )
