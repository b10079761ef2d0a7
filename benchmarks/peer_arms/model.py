"""The two models and a client's training, as a researcher who knows torch and timm writes them.

The plain loop, Flower and pfl-research share them. Images were resized and normalised once, and
the frozen features of head tuning were computed once. The backbone is not a submodule: its weights
are neither sent nor looked at by an optimiser.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import fedloom.backbones.micro_vit  # noqa: F401  registers micro_vit with timm
from peer_arms.world import Params, World


@cache
def _backbone(name: str, image_size: int, weights: str) -> VisionTransformer:
    """Load the frozen ViT."""
    model = timm.create_model(name, num_classes=0, img_size=image_size)
    assert isinstance(model, VisionTransformer)
    tensors = load_file(weights)
    model.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("head.")})
    return model.eval().requires_grad_(False)


class HeadTuning(nn.Module):
    """A linear head [C, d] on features [B, d]."""

    def __init__(self, params: Params):
        super().__init__()
        self.head = nn.Parameter(params["head"])

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits [B, C]."""
        return features @ self.head.T


class FedVPT(nn.Module):
    """Prompts [P, d] behind the class token at block 1, and a linear head [C, d].

    With `half`, the backbone computes under torch's autocast to bfloat16.
    """

    def __init__(self, params: Params, backbone: VisionTransformer, half: bool):
        super().__init__()
        self.shared_prompts = nn.Parameter(params["shared_prompts"])
        self.head = nn.Parameter(params["head"])
        self._frozen, self._half = (backbone,), half

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits [B, C] of images [B, channels, H, W]."""
        (backbone,) = self._frozen
        with torch.autocast("cpu", torch.bfloat16) if self._half else nullcontext():
            with torch.no_grad():
                tokens = backbone.norm_pre(backbone._pos_embed(backbone.patch_embed(images)))
            prompts = self.shared_prompts.expand(len(tokens), -1, -1)
            tokens = torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], 1)  # [B, T + P, d]
            tokens = backbone.blocks(tokens)
        return backbone.norm(tokens.float())[:, 0] @ self.head.T


def model_of(world: World, method: str, params: Params, half: bool = False) -> nn.Module:
    """Return a method's model with these parameters, which it then changes."""
    if method == "head_tuning":
        return HeadTuning(params)
    return FedVPT(params, _backbone(world.backbone, world.image_size, world.weights), half)


def train_client(world: World, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Train a client's model on its batches with a fresh SGD."""
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, world.lr, momentum=world.momentum)
    for inputs, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        torch.nn.utils.clip_grad_norm_(params, world.clip)
        optimizer.step()
