"""Every ViT method keeps the contract on ViTs of other families, or is refused in planning."""

from functools import cache

import pytest
import timm
import torch

from fedloom.backbones.vit import FrozenViT
from fedloom.contract import checks, tiny
from fedloom.hooks import manifest

pytestmark = pytest.mark.slow

SMALL = {
    "img_size": tiny.TINY_SIDE, "patch_size": 8, "embed_dim": 16, "depth": 12, "num_heads": 2,
    "mlp_ratio": 1,
}  # fmt: skip
# rotary positions, registers and the mean of patches; gated MLPs; an attention over patches alone
FAMILIES = [
    "vit_small_patch16_dinov3", "eva02_base_patch14_224", "vit_base_patch16_siglip_224",
]  # fmt: skip
# each method is checked on one of them, since all of them take a quarter of an hour of a core
METHODS = [m for m in manifest.discover_methods().values() if m.family == "vit"]


@cache
def _tiny_vit(name: str) -> FrozenViT:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=0, **SMALL)
        for parameter in model.parameters():  # an attention that pools begins at zeros
            parameter.data += 0.05 * torch.randn_like(parameter)
        return FrozenViT(model)


@pytest.mark.parametrize("number", range(len(METHODS)), ids=lambda number: METHODS[number].name)
def test_a_method_trains_on_a_vit_of_another_family(number, tmp_path, monkeypatch):
    method = METHODS[number]
    name = FAMILIES[number % len(FAMILIES)]
    if method.needs_class_token:
        name = "eva02_base_patch14_224"
    vit = _tiny_vit(name)
    monkeypatch.setattr(tiny, "tiny_backbone", lambda family, width=16: vit)
    checks.keeps_rules(method, tmp_path)
    checks.stacks(method, tmp_path)
