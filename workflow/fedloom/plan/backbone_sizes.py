"""Sizes of a backbone, read from the library's own configuration without importing the library.

open_clip keeps a JSON file per model; timm a function per ViT, whose source has the numbers. What
neither has counts as a ViT-B/16, with the image size and the patches that its name says.
"""

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedloom.common.activations import training_bytes
from fedloom.plan.settings import Backbone

PASSING = 12  # numbers per token and feature that are there at once without training
FLOAT = 4 / 1e6  # megabytes of a number
TIMM_FILES = ("vision_transformer.py", "deit.py")  # those of the class VisionTransformer
NUMBER = r"(\d+(?:\.\d+)?)(?:\s*/\s*(\d+))?(?:\s*\*\s*(\d+))?"  # as 4, 64 / 13 or 2.66667 * 2


@dataclass(frozen=True)
class Tower:
    """A transformer: width, depth, tokens, and the width of its MLP over its own."""

    width: int
    depth: int
    tokens: int
    mlp_ratio: float = 4.0

    @property
    def operations(self) -> float:
        """Operations of a forward pass of all tokens: 24 d² T + 4 d T² a block, if r is 4."""
        matrices = 2 * (4 + 2 * self.mlp_ratio) * self.width**2 * self.tokens
        return self.depth * (matrices + 4 * self.width * self.tokens**2)

    @property
    def parameters(self) -> float:
        """Numbers of the blocks' matrices, which are nearly all: 12 d² a block, if r is 4."""
        return self.depth * (4 + 2 * self.mlp_ratio) * self.width**2


@dataclass(frozen=True)
class Shape:
    """The sizes of a backbone.

    Attributes:
        embeddings: numbers beside the blocks, of patches, positions and words.
    """

    image: Tower
    text: Tower
    embeddings: float

    @property
    def operations(self) -> float:
        """Operations of a forward pass of one image."""
        return self.image.operations

    @property
    def parameters(self) -> float:
        """Numbers that the weights hold."""
        return self.image.parameters + self.text.parameters + self.embeddings

    @property
    def weights(self) -> float:
        """Megabytes of the weights."""
        return self.parameters * FLOAT

    @property
    def training(self) -> float:
        """Megabytes that the activations of one image take while training."""
        return training_bytes(self.image.tokens * self.image.width, self.image.depth) / 1e6

    @property
    def passing(self) -> float:
        """Megabytes that one image takes in a pass without training."""
        return PASSING * self.image.tokens * self.image.width * FLOAT


@dataclass(frozen=True)
class _Text:
    """What a configuration says of a text tower."""

    width: int = 0
    depth: int = 0
    length: int = 0
    words: int = 0
    mlp_ratio: float = 4.0

    @property
    def tower(self) -> Tower:
        return Tower(self.width, self.depth, self.length, self.mlp_ratio)


@dataclass(frozen=True)
class _Image:
    """What a configuration says of an image tower."""

    width: int = 768
    depth: int = 12
    patch: int = 16
    size: int = 224
    mlp_ratio: float = 4.0
    extra: int = 1  # class and register tokens


SHIPPED = {  # the micro backbones, which no library knows
    "micro_vit": (_Image(96, 12, 8, 32), _Text()),
    "micro_clip": (_Image(96, 12, 8, 32), _Text(64, 4, 77, 49408)),
}
USUAL_TEXT = _Text(512, 12, 77, 49408)  # of a ViT-B/16


def shape(backbone: Backbone) -> Shape:
    """Return the sizes of a backbone by its name and image size."""
    name = backbone.settings["name"]
    if name in SHIPPED:
        image, text = SHIPPED[name]
    elif backbone.library == "open_clip":
        image, text = _of_open_clip(name)
    else:
        image, text = _of_timm(name), _Text()
    size = backbone.settings.get("image_size") or image.size
    tokens = (size // image.patch) ** 2 + image.extra
    embeddings = 3 * image.patch**2 * image.width + tokens * image.width
    embeddings += (text.words + text.length) * text.width
    tower = Tower(image.width, image.depth, tokens, image.mlp_ratio)
    return Shape(tower, text.tower, embeddings)


def _of_open_clip(name: str) -> tuple[_Image, _Text]:
    """Read a model's JSON file in open_clip; its image tower may be timm's."""
    file = _folder("open_clip") / "model_configs" / f"{name}.json"
    if not file.is_file():
        return _named(name), USUAL_TEXT
    content = json.loads(file.read_text())
    image, text = content["vision_cfg"], content["text_cfg"]
    if "timm_model_name" in image:
        tower = _of_timm(image["timm_model_name"])
        tower = _Image(**vars(tower) | {"size": image["image_size"]})
    elif isinstance(image["layers"], int):
        numbers = {"width": "width", "depth": "layers", "patch": "patch_size", "size": "image_size"}
        ratio = image.get("mlp_ratio", 4.0)
        tower = _Image(**{key: image[entry] for key, entry in numbers.items()}, mlp_ratio=ratio)
    else:
        tower = _named(name)  # a ResNet
    if "width" not in text:
        return tower, USUAL_TEXT  # another library's text tower
    return tower, _Text(
        text["width"],
        text["layers"],
        text.get("context_length", 77),
        text.get("vocab_size", 49408),
        text.get("mlp_ratio", 4.0),
    )


@cache
def _of_timm(name: str) -> _Image:
    """Read the numbers of a ViT in timm's source: a function per model, an entry per weights."""
    model = name.split(".")[0]
    for file in TIMM_FILES:
        source = (_folder("timm") / "models" / file).read_text()
        function = re.search(rf"^def {re.escape(model)}\(.*?(?=^def |\Z)", source, re.M | re.S)
        if function is None:
            continue
        entries = [_entry(source, name), _entry(source, model)]  # of these weights, or of any
        size = re.search(r"input_size=\(3, (\d+)", next(filter(None, entries), ""))
        built = _number(function[0], "img_size", 224)
        registers = _number(function[0], "reg_tokens", 0)
        return _Image(
            width=int(_number(function[0], "embed_dim", 768)),
            depth=int(_number(function[0], "depth", 12)),
            patch=int(_number(function[0], "patch_size", 16)),
            size=int(size[1]) if size else int(built),
            mlp_ratio=_number(function[0], "mlp_ratio", 4.0),
            extra=int(registers) + ("class_token=False" not in function[0]),
        )
    return _named(name)


def _entry(source: str, name: str) -> str:
    """Return what timm's source says of weights of that name, or "" if nothing."""
    found = re.search(rf"'{re.escape(name)}(?:\.\w+)?': _cfg\(.*?\n    (?='|\}})", source, re.S)
    return found[0] if found else ""


def _number(source: str, key: str, default: float) -> float:
    """Return the number that an argument has in a piece of source, or the default."""
    given = re.search(rf"\b{key}={NUMBER}", source)
    if given is None:
        return default
    value, divisor, factor = given.groups()
    return float(value) / int(divisor or 1) * int(factor or 1)


def _named(name: str) -> _Image:
    """Return the sizes of a ViT-B with the patches and the image size that a name says."""
    patch = re.search(r"patch(\d+)|ViT-\w+-(\d+)", name)
    size = re.search(r"[_-](\d{3})(?=$|[._-])", name)
    return _Image(
        patch=int(patch[1] or patch[2]) if patch else 16, size=int(size[1]) if size else 224
    )


@cache
def _folder(library: str) -> Path:
    """Return the folder of an installed library, without importing it."""
    spec = importlib.util.find_spec(library)
    return Path(spec.origin).parent if spec and spec.origin else Path()
