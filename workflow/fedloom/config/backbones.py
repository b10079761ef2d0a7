"""The keys of a backbone, by the library that gives it."""

from typing import Annotated, Literal

from pydantic import Field

from fedloom.common.schema import Keys
from fedloom.config.datasets import ImageSize

RESNETS = Literal[
    "resnet18", "resnet34", "resnet50",
    "resnet8_wide", "resnet20", "resnet32", "resnet44", "resnet56",
]  # fmt: skip


class BackboneKind(Keys):
    """The keys of every backbone."""

    cache_format: Literal["bf16", "float16"] | None = None
    """Number format in which its features and patches are computed and cached; default: float32,
    and float16 to keep patches."""


class Timm(BackboneKind):
    """any timm vision transformer with a class token"""

    name: str
    """Timm's name, or micro_vit."""
    weights: str
    """Hub, or a .safetensors or .npz file (relative paths start at the checkout)."""
    image_size: ImageSize | None = None
    """Default: the model's own."""


class OpenClip(BackboneKind):
    """a CLIP of open_clip whose text tower is causal and read at the EOT

    OpenAI's, LAION's and DataComp's are.
    """

    name: str
    """Open_clip's name, as ViT-B-16-quickgelu, or micro_clip."""
    weights: str
    """A tag of open_clip's (openai: downloaded from a hub), or a .safetensors file (relative paths
    start at the checkout)."""


class Torchvision(BackboneKind):
    """a ResNet, for the methods that train one"""

    name: RESNETS
    """Torchvision's for 224 pixels (18, 34, 50), or the small ones for 32 pixels that CIFAR is
    trained on; resnet8_wide is four times as wide (CReFF, FEDIC)."""
    weights: str
    """None (untrained, drawn alike in all runs), or a .safetensors file in torchvision's names
    (relative paths start at the checkout)."""
    image_size: Annotated[int, Field(ge=8, le=4096)] | None = None
    """Default: 224 or 32."""


LIBRARIES: dict[str, type[BackboneKind]] = {
    "timm": Timm,
    "open_clip": OpenClip,
    "torchvision": Torchvision,
}
