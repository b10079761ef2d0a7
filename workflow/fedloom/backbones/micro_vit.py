"""The micro ViTs, small ``VisionTransformer`` models of timm for grey images of 32 pixels.

``micro_vit`` ships with FedLoom as the default backbone. It has a class token and 4 x 4 patch
tokens, and 1.4 M parameters. It has twelve blocks, as ViT-B has, so that "prompts at blocks 5 to 7"
means the same as in the papers. The patch embedding is three convolutions, which learn faster than
one linear map. ``micro_vit_gap`` is the same without a class token: it pools its patches by their
mean (global average pooling). When this module is imported, it registers both with timm.
"""

from typing import Any

from timm.layers.helpers import to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

GREY_PREPROCESSING = {"mean": (0.5,), "std": (0.5,), "interpolation": "bilinear"}


class _ConvStem(nn.Module):
    """Three convolutions of stride 2, which make a token of each 8 x 8 pixels, as a ``PatchEmbed``.

    They use group norm, because a frozen backbone must not depend on running statistics.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int],
        patch_size: int | tuple[int, int],
        in_chans: int,
        embed_dim: int,
        bias: bool = True,
        dynamic_img_pad: bool = False,
        **factory: Any,
    ) -> None:
        """Take the arguments of timm's PatchEmbed; `factory` may hold `device` and `dtype`.

        Raises:
            ValueError: the image is not divided into patches of 8 pixels without padding.
        """
        super().__init__()

        # set the attributes of a PatchEmbed that timm reads
        sizes: Any = (to_2tuple(img_size), to_2tuple(patch_size))
        self.img_size, self.patch_size = sizes
        self.grid_size = (self.img_size[0] // 8, self.img_size[1] // 8)
        self.num_patches = self.grid_size[0] * self.grid_size[1]

        divisible = self.img_size == (8 * self.grid_size[0], 8 * self.grid_size[1])
        if self.patch_size != (8, 8) or dynamic_img_pad or not divisible:
            raise ValueError(
                "micro_vit has patches of 8 pixels and no padding: img_size must be a multiple of "
                f"8, got {self.img_size}; leave out patch_size and dynamic_img_pad"
            )

        # three convolutions that halve the image
        quarter = embed_dim // 4
        half = embed_dim // 2
        self.conv1 = nn.Conv2d(in_chans, quarter, 3, stride=2, padding=1, bias=False, **factory)
        self.norm1 = nn.GroupNorm(1, quarter, **factory)
        self.conv2 = nn.Conv2d(quarter, half, 3, stride=2, padding=1, bias=False, **factory)
        self.norm2 = nn.GroupNorm(1, half, **factory)
        self.conv3 = nn.Conv2d(half, embed_dim, 3, stride=2, padding=1, bias=bias, **factory)
        self.act = nn.GELU()

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens [B, num_patches, embed_dim] for images [B, in_chans, H, W]."""
        hidden = self.act(self.norm1(self.conv1(images)))
        hidden = self.act(self.norm2(self.conv2(hidden)))
        return self.conv3(hidden).flatten(2).transpose(1, 2)


_CONFIG = {
    "num_classes": 0,
    "input_size": (1, 32, 32),
    "fixed_input_size": True,
    **GREY_PREPROCESSING,
}
# arguments of VisionTransformer
_SHAPE: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "in_chans": 1,
    "embed_dim": 96,
    "depth": 12,
    "num_heads": 3,
    "embed_layer": _ConvStem,
}
default_cfgs = generate_default_cfgs({"micro_vit": _CONFIG, "micro_vit_gap": _CONFIG})


@register_model
def micro_vit(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """Return a ViT of 12 blocks, width 96 and 3 heads.

    `kwargs` are arguments of VisionTransformer, which override these numbers.
    """
    return build_model_with_cfg(VisionTransformer, "micro_vit", pretrained, **(_SHAPE | kwargs))


@register_model
def micro_vit_gap(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """Return a micro ViT without a class token, which pools its patches by their mean.

    The final norm comes before the mean, as in ``micro_vit``, whose weights it began with.
    """
    pooling: dict[str, Any] = {"class_token": False, "global_pool": "avg", "fc_norm": False}
    settings = _SHAPE | pooling | kwargs
    return build_model_with_cfg(VisionTransformer, "micro_vit_gap", pretrained, **settings)
