"""Find the weights of a model's backbone, and check that they are those it was trained with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedloom.backbones.backbone import Backbone, weights_digest
from fedloom.common.errors import FedLoomError
from fedloom.common.receipts import sha256
from fedloom.config.settings import BackboneSettings, local_weights


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


def with_tokenizer_below(backbone: BackboneSettings, root: Path) -> BackboneSettings:
    """Return a backbone whose local tokenizer is the folder of its path, or of its name, in `root`.

    If neither exists, or it has no local tokenizer, the backbone stays as it is.
    """
    if "tokenizer" not in backbone.settings:
        return backbone
    path = Path(backbone.settings["tokenizer"])
    for folder in (root / path, root / path.name):
        if folder.is_dir():
            found = {"tokenizer": str(folder.absolute())}
            return replace(backbone, settings=backbone.settings | found)
    return backbone


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
