"""Which file a backbone's weights come from, if they come from a file."""

from pathlib import Path

from fedloom.common.checkout import resource
from fedloom.config.settings import Backbone


def local_weights(backbone: Backbone) -> Path | None:
    """Return the weights file of a backbone, None if a hub has the weights."""
    return weights_file(backbone.library, backbone.settings["weights"])


def weights_file(library: str, weights: str) -> Path | None:
    """Return the file that `weights` names, None for a hub, a tag of open_clip's, or no weights."""
    is_tag = library == "open_clip" and "/" not in weights and "." not in weights
    untrained = library == "torchvision" and weights == "none"
    return None if weights == "hub" or is_tag or untrained else resource(weights)
