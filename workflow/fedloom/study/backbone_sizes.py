"""Sizes of backbones, which planning needs and which the model itself knows.

A file holds those of the backbones in `config.yaml` and in the studies that ship. The sizes of any
other are counted once, by a process that imports torch (fedloom.backbones.sizes), and kept.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache

from fedloom.common.checkout import ROOT
from fedloom.common.errors import FedLoomError
from fedloom.common.io import canonical, read_json, write_text
from fedloom.common.memory import training_bytes
from fedloom.config.settings import Backbone
from fedloom.study import paths

SHIPPED = ROOT / "workflow/resources/backbone_sizes.json"
SIZED_BY = ("name", "image_size")  # settings that a file's sizes depend on
PASSING = 12  # numbers per token and feature that are in memory at once without training
FLOAT = 4 / 1e6  # megabytes of a number


@dataclass(frozen=True)
class Sizes:
    """The sizes of a backbone.

    Attributes:
        parameters: numbers that the weights hold.
        operations: of a forward pass of one image.
        image_floats: T d of an image's T tokens; of a ResNet, the largest feature map.
        training_bytes: activations that training keeps of an image for the backward pass.
        width, depth: d and number of blocks of the image tower; a ResNet has no blocks.
        text_width, text_depth: of a CLIP's text tower.
        token_operations: of a forward pass of one token of a text.
    """

    parameters: int
    operations: float
    image_floats: int
    training_bytes: int
    width: int
    depth: int
    text_width: int = 0
    text_depth: int = 0
    token_operations: float = 0.0

    @property
    def tokens(self) -> float:
        """Return T, the tokens of an image."""
        return self.image_floats / self.width

    @property
    def weights(self) -> float:
        """Return the megabytes of the weights."""
        return self.parameters * FLOAT

    @property
    def passing(self) -> float:
        """Return the megabytes that one image takes in a pass without training."""
        return PASSING * self.image_floats * FLOAT


def sizes(backbone: Backbone) -> Sizes:
    """Return the sizes of a backbone; refuse one that its library or FedLoom cannot read."""
    kept = _sizes(key(backbone))
    if not kept.depth:
        return kept
    checkpointing = bool(backbone.settings.get("gradient_checkpointing"))
    of_image = training_bytes(kept.image_floats, kept.depth, checkpointing, backbone.precision)
    return replace(kept, training_bytes=of_image)


def key(backbone: Backbone) -> str:
    """Return the library and the settings that sizes depend on, under which they are kept."""
    settings = {name: backbone.settings[name] for name in SIZED_BY if backbone.settings.get(name)}
    return f"{backbone.library} {canonical(settings)}"


@cache
def _sizes(key: str) -> Sizes:
    """Look the sizes up, or count and keep them."""
    counted = paths.at(paths.BACKBONE_SIZES)
    kept = read_json(counted) if counted.exists() else {}
    known = read_json(SHIPPED) | kept
    if key not in known:
        command = [sys.executable, "-m", "fedloom.backbones.sizes", *key.split(" ", 1)]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
            raise FedLoomError(f"sizes of {key}: {said[-1]}")
        known[key] = json.loads(done.stdout)
        write_text(counted, json.dumps(kept | {key: known[key]}, indent=0))
    return Sizes(**known[key])
