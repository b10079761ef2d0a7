"""Look up the sizes of backbones, for planning, and whether a ViT has a class token.

A file has the sizes of all backbones that ship. The sizes of any other backbone are counted once.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache

from fedloom.common.errors import FedLoomError
from fedloom.common.files import canonical, read_json, write_text
from fedloom.common.json_types import JsonDict
from fedloom.common.key_path import CONFIG
from fedloom.config.settings import BackboneSettings, compute_settings
from fedloom.machine.install import ROOT
from fedloom.machine.memory import SAVED_FLOATS, training_bytes
from fedloom.planning import paths
from fedloom.planning.backbone_plugins import plugin_facts

SHIPPED = ROOT / "workflow/resources/backbone_sizes.json"
# how many numbers per token and feature are in memory at once, in a pass without training
FLOATS_PER_TOKEN_AND_FEATURE = 12
# the number of tokens that a class's name takes in a prompt of a CLIP
NAME_TOKENS = 8
# megabytes of a number in float32
MB_PER_FLOAT = 4 / 1e6


@dataclass(frozen=True)
class Sizes:
    """The sizes of a backbone; only a CLIP has sizes of texts."""

    # the numbers that the weights hold
    parameters: int
    # floating-point operations of a forward pass of one image
    operations: float
    # T d, where T is the number of an image's tokens; for a tower without tokens, the size of the
    # largest feature map
    image_floats: int
    # the bytes of activations that training keeps of an image for the backward pass
    training_bytes: int
    # d, and the number of blocks that methods can enter, of the image tower; a ResNet has none
    width: int
    depth: int
    # how many numbers training keeps of a block for the backward pass, in float32, per token and
    # feature
    saved_floats: float = SAVED_FLOATS
    # whether a ViT has a class token; every CLIP and ResNet counts as if it had one
    has_class_token: bool = True
    # the same of the text tower
    text_width: int = 0
    text_depth: int = 0
    # floating-point operations of a forward pass of one token of a text
    token_operations: float = 0.0
    # the number of tokens that the text tower computes of each class, whatever its name; 0 if it
    # computes only those of the name
    text_places: int = 0
    # a CLIP's image tower gives features of patches
    has_patches: bool = True

    @property
    def tokens(self) -> float:
        """T, the number of an image's tokens."""
        return self.image_floats / self.width

    @property
    def tokens_of_class(self) -> int:
        """The number of tokens that a class takes in the text tower."""
        return self.text_places or NAME_TOKENS

    @property
    def weights(self) -> float:
        """The megabytes of the weights."""
        return self.parameters * MB_PER_FLOAT

    @property
    def passing(self) -> float:
        """The megabytes that one image takes in a pass without training."""
        return FLOATS_PER_TOKEN_AND_FEATURE * self.image_floats * MB_PER_FLOAT


def sizes(backbone: BackboneSettings) -> Sizes:
    """Return the sizes of a backbone.

    Raises:
        InvalidKeyError: the library or FedLoom cannot build the backbone.
    """
    try:
        kept = _sizes(size_key(backbone))
    except FedLoomError as error:
        reason = f"cannot build {backbone.settings['name']}: {error}"
        raise (CONFIG / "backbones" / backbone.label).error(reason) from None
    if not kept.depth:
        return kept

    # what training keeps of an image depends on settings that do not change the other sizes
    precision, checkpointing, _ = compute_settings(backbone.settings)
    image_bytes = training_bytes(
        kept.image_floats, kept.depth, checkpointing, precision, kept.saved_floats
    )
    return replace(kept, training_bytes=image_bytes)


def size_key(backbone: BackboneSettings) -> str:
    """Return the key under which sizes are kept: the library, and settings that change sizes.

    The key of a plugin's backbone also has what else identifies it.
    """
    given = JsonDict()
    for name in ("name", "image_size"):
        value = backbone.settings.get(name)
        if value:
            given[name] = value
    given |= plugin_facts(backbone)
    return f"{backbone.library} {canonical(given)}"


@cache
def _sizes(key: str) -> Sizes:
    """Return the sizes of a key; if no file has them, count them and write them to a file."""
    counted = paths.path_for(paths.BACKBONE_SIZES)
    kept = JsonDict()
    if counted.exists():
        kept = read_json(counted)
    known = read_json(SHIPPED) | kept
    if key in known:
        return Sizes(**known[key])

    # Count them in a process of its own, since planning imports no torch. It ends with a line if it
    # cannot build the backbone.
    command = [sys.executable, "-m", "fedloom.backbones.sizes", *key.split(" ", 1)]
    places = [str(ROOT / "workflow"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        status = f"the count of its sizes ended with status {done.returncode}"
        raise FedLoomError((done.stderr.splitlines() or [status])[-1])

    # the file gets only counted sizes, not those that ship
    kept[key] = json.loads(done.stdout)
    write_text(counted, json.dumps(kept, indent=0))
    return Sizes(**kept[key])
