"""Define the keys of a backbone, by the library that it comes from."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedloom.common.receipts import digest, sha256
from fedloom.common.schema import Item, Keys, Number, require_other_keys
from fedloom.config.datasets import ImageSize

RESNETS = Literal[
    "resnet18", "resnet34", "resnet50",
    "resnet8_wide", "resnet20", "resnet32", "resnet44", "resnet56",
]  # fmt: skip
# the files of a tokenizer from a hub
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
PerChannel = Annotated[list[Item], Field(min_length=1, max_length=3)]


def tokenizer_digest(files: Iterable[Path]) -> str:
    """Return a digest of the files of a tokenizer, which does not depend on their folder."""
    return digest({file.name: sha256(file) for file in files})


class BackboneKind(Keys):
    """The keys of every backbone."""

    mean: PerChannel[Annotated[Number, Field(ge=0, le=1)]] | None = None
    """Mean of each channel, which was subtracted from images (with values from 0 to 1) when the
    weights were trained. One number stands for all channels. Default: the library's value for the
    name or tag, which may not fit weights from a file."""
    std: PerChannel[Annotated[Number, Field(gt=0, le=1)]] | None = None
    """Standard deviation of each channel, by which it was divided after that. It must be set
    together with `mean`."""
    cache_format: Literal["bf16", "float16"] | None = None
    """Number format of cached features and patches. Default: float32 for features, float16 for
    patches."""

    @model_validator(mode="after")
    def _mean_and_std(self) -> Self:
        return require_other_keys(self, mean="std", std="mean")


class Timm(BackboneKind):
    """Any `VisionTransformer` or `Eva` of timm, such as DINOv2 and DINOv3, EVA-02, SigLIP's image
    tower or DeiT III.
    """

    name: str
    """Name of the model in timm, or `micro_vit`, or `micro_vit_gap`, which has no class token."""
    weights: str
    """`hub` for the weights that timm downloads, a .safetensors or .npz file, or `none` for random
    weights, the same in every run."""
    image_size: ImageSize | None = None
    """Side of the input images in pixels. Default: the model's own."""


class OpenClip(BackboneKind):
    """A CLIP model of open_clip with open_clip's own text encoder, such as OpenAI's, LAION's,
    MobileCLIP or SigLIP.
    """

    name: str
    """Name of the model in open_clip, such as ViT-B-16-quickgelu or ViT-B-16-SigLIP2, or
    `micro_clip`."""
    weights: str
    """Tag of open_clip's weights, which are downloaded from a hub, such as `openai`; a .safetensors
    file; or `none` for random weights, the same in every run."""
    quick_gelu: bool | None = None
    """Whether the weights were trained with QuickGELU, as OpenAI's were. A file of weights does not
    say this. Default: true for models whose name ends with -quickgelu."""

    tokenizer: str | None = None
    """Folder with `tokenizer.json` and `tokenizer_config.json` of the hub's repository that
    open_clip names for a SigLIP, such as timm/ViT-B-16-SigLIP2. Default: they are downloaded from
    the hub, and kept. Models with CLIP's own tokenizer need none."""

    @model_validator(mode="after")
    def _micro_clip_has_gelu(self) -> Self:
        if self.quick_gelu and self.name == "micro_clip":
            raise ValueError("micro_clip has no QuickGELU; leave out quick_gelu")
        return self


class Torchvision(BackboneKind):
    """A ResNet, for methods that can train one."""

    name: RESNETS
    """Name of the model: `resnet18`, `resnet34` and `resnet50` are torchvision's for images of 224
    pixels, the others are for images of 32 pixels. `resnet8_wide` is four times as wide (CReFF,
    FEDIC)."""
    weights: str
    """`none` for random weights, the same in every run, or a .safetensors file with torchvision's
    parameter names."""
    image_size: Annotated[int, Field(ge=8, le=4096)] | None = None
    """Side of the input images in pixels. Default: 224 or 32, depending on the model."""


class PluginBackbone(BackboneKind):
    """The keys that every backbone of a plugin has beside its options."""

    name: str
    """Name of the model, one of those that the plugin can build."""
    weights: str
    """`hub` for the weights that the plugin downloads, a .safetensors file with the names of the
    plugin's model, or `none` for random weights, the same in every run."""
    image_size: ImageSize | None = None
    """Side of the input images in pixels. Default: the model's own."""

    # whether the plugin can download weights; the plugin's own model of keys sets it
    has_hub: ClassVar[bool] = False

    @model_validator(mode="after")
    def _weights_exist(self) -> Self:
        if self.weights == "hub" and not self.has_hub:
            raise ValueError("this plugin has no hub; set weights to a .safetensors file, or none")
        return self


# FedLoom's own kinds of backbone, by the value of the key `library`
KINDS: dict[str, type[Keys]] = {
    "timm": Timm,
    "open_clip": OpenClip,
    "torchvision": Torchvision,
}
