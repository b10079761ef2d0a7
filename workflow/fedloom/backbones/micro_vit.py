"""The micro ViT: the embedded default backbone, a timm ``VisionTransformer`` for 32 px grey images.

Importing this module registers it, so ``timm.create_model("micro_vit", num_classes=0)`` works.
Twelve blocks, as ViT-B has, so that "prompts at blocks 5 to 7" means what it means in the papers;
width 96, three heads, 4 x 4 patch tokens and a class token, 1.4 M parameters. The patch embedding
is not standard: three small convolutions, which learn much faster than one 8 x 8 linear map.
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


class ConvStem(nn.Module):
    """Three 3 x 3 convolutions of stride 2: one token per 8 x 8 pixels, a timm ``embed_layer``.

    Has the attributes of timm's ``PatchEmbed`` that ``VisionTransformer`` and prompt initialisers
    read. Its norm is group norm, because a frozen backbone must not depend on running statistics.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 32,
        patch_size: int | tuple[int, int] = 8,
        in_chans: int = 1,
        embed_dim: int = 96,
        bias: bool = True,
        dynamic_img_pad: bool = False,
        **factory: Any,  # timm's `device` and `dtype`
    ) -> None:
        super().__init__()
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        self.patch_size = (8, 8)
        if patch_size not in (8, (8, 8)) or dynamic_img_pad:
            raise ValueError("the stem of micro_vit has patch size 8 and no padding")
        if self.img_size[0] % 8 or self.img_size[1] % 8:
            raise ValueError(f"image size {self.img_size} is not a multiple of 8")
        self.grid_size = (self.img_size[0] // 8, self.img_size[1] // 8)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        quarter, half = embed_dim // 4, embed_dim // 2
        self.conv1 = nn.Conv2d(in_chans, quarter, 3, stride=2, padding=1, bias=False, **factory)
        self.norm1 = nn.GroupNorm(1, quarter, **factory)
        self.conv2 = nn.Conv2d(quarter, half, 3, stride=2, padding=1, bias=False, **factory)
        self.norm2 = nn.GroupNorm(1, half, **factory)
        self.conv3 = nn.Conv2d(half, embed_dim, 3, stride=2, padding=1, bias=bias, **factory)
        self.act = nn.GELU()

    def forward(self, images: Tensor) -> Tensor:
        """Embed images [B, in_chans, H, W] as tokens [B, num_patches, embed_dim]."""
        hidden = self.act(self.norm1(self.conv1(images)))
        hidden = self.act(self.norm2(self.conv2(hidden)))
        return self.conv3(hidden).flatten(2).transpose(1, 2)


default_cfgs = generate_default_cfgs(
    {
        "micro_vit": {
            "num_classes": 0,
            "input_size": (1, 32, 32),
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "mean": (0.5,),
            "std": (0.5,),
        }
    }
)


@register_model
def micro_vit(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """Build a ViT of 12 blocks, width 96 and 3 heads for grey images of 32 pixels.

    `kwargs` go to ``VisionTransformer`` and override these.
    """
    shape = {
        "img_size": 32,
        "patch_size": 8,
        "in_chans": 1,
        "embed_dim": 96,
        "depth": 12,
        "num_heads": 3,
        "embed_layer": ConvStem,
    }
    return build_model_with_cfg(VisionTransformer, "micro_vit", pretrained, **(shape | kwargs))
