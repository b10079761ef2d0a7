"""ViTs of other families: rotary positions, pooled patches, gated MLPs; exactly timm's models.

Each is the architecture of timm's name, made narrow and shallow.
"""

import copy

import pytest
import safetensors.torch
import timm
import torch

from fedloom.backbones import vit
from fedloom.backbones.vit import FrozenViT, insert
from first_round import prefix
from refusals import refused

SMALL = {"depth": 3, "embed_dim": 32, "num_heads": 2}
# timm's name -> what is special about it
FAMILIES = {
    "vit_small_patch16_dinov3": "rotary positions, registers, the mean of patches",
    "vit_small_patch16_dinov3_qkvb": "a bias that is added to queries, keys and values",
    "vit_small_plus_patch16_dinov3": "an MLP with a layer of gates",
    "vit_small_patch16_lingbot": "rotary positions, a class token that is read",
    "eva02_tiny_patch14_224": "absolute and rotary positions, gates and values in one layer",
    "eva02_base_patch16_clip_224": "layers of their own for queries, keys and values",
    "eva_large_patch14_196": "a class token, but the mean of patches is read",
    "vit_small_patch16_rope_224": "no absolute positions",
    "vit_small_patch16_rope_mixed_224": "rotary positions that each head of each block learned",
    "vit_pe_core_tiny_patch16_384": "an attention that pools all tokens",
    "vit_pe_spatial_tiny_patch16_512": "rotary positions, the mean of patches",
    "vit_medium_patch16_rope_reg1_gap_256": "rotary positions behind a register alone",
    "vit_base_patch16_siglip_224": "neither class token nor registers, an attention that pools",
    "vit_base_patch16_siglip_gap_224": "neither class token nor registers, the mean of patches",
    "vit_so150m_patch16_reg4_map_256": "registers that the pooling attention leaves out",
    "vit_betwixt_patch16_reg4_gap_256": "registers without a class token",
    "vit_small_patch14_reg4_dinov2": "registers behind the class token",
    "vit_base_patch16_rpn_224": "norms behind the attention and the MLP",
    "deit3_small_patch16_224": "layer scales",
    "aimv2_large_patch14_224": "root mean square norms, an MLP with gates",
}
WITHOUT_CLASS_TOKEN = [name for name in FAMILIES if "_gap_" in name or "siglip" in name]
# these are trained, or get inserts, in the inside of their blocks
INSIDE = [name for name in FAMILIES if "_rpn_" not in name]


def _model(name, **more):
    """Return timm's model, made small, in float64; no parameter is 0 or 1, which hides mistakes."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **(SMALL | more)).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.double()


def _vit(model):
    """Return the adapter of a copy of the model, with pixels in float64."""
    backbone = FrozenViT(copy.deepcopy(model))
    pixels = backbone.pixels
    backbone.pixels = lambda images: pixels(images).double()
    return backbone


def _images(model, clients=1, count=2):
    side = model.patch_embed.img_size[0]
    return torch.randint(0, 256, (clients, count, side, side, 3), dtype=torch.uint8)


def _features(model, x):
    return model.forward_head(model.forward_features(x), pre_logits=True)


@pytest.mark.parametrize("side", [None, 112])
@pytest.mark.parametrize("name", FAMILIES)
def test_without_prompts_the_features_are_timms(name, side):
    model = _model(name, **({"img_size": side} if side else {}))
    backbone = _vit(model)
    images = _images(model)
    expected = _features(model, backbone.pixels(images[0]))
    torch.testing.assert_close(backbone.features(images)[0], expected, atol=1e-5, rtol=1e-5)
    final = backbone.compute_cache(images[0], "features")["final"]
    torch.testing.assert_close(final, expected, atol=1e-5, rtol=1e-5)
    if name in INSIDE:  # the same, part by part
        nothing = {1: {"mlp": lambda given, out: out}}
        actual = backbone.features(images, inserts=nothing)[0]
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_have_no_position_and_are_not_pooled(name):
    """timm's own blocks are the reference: they count prompts in front as further registers."""
    model = _model(name, img_size=112)
    backbone = _vit(model)
    images = _images(model)
    count = 3
    prompts = torch.randn(1, count, 32, dtype=torch.float64)
    tokens = backbone.embed(images)
    read = backbone.blocks(insert(tokens, prompts), read="pooled")
    actual = backbone.pool(read)[0]

    x = backbone.pixels(images[0])
    embedded = model._pos_embed(model.patch_embed(x))
    embedded, rope = embedded if isinstance(embedded, tuple) else (embedded, None)
    x = model.norm_pre(embedded)
    prefix_count = model.num_prefix_tokens
    prompts = prompts.expand(len(x), -1, -1)
    x = torch.cat([x[:, :prefix_count], prompts, x[:, prefix_count:]], 1)
    for j, block in enumerate(model.blocks):
        if rope is None:
            x = block(x)
        else:
            block.attn.num_prefix_tokens = prefix_count + count
            x = block(x, rope=rope[j] if model.rope_mixed else rope)
    x = torch.cat([x[:, :prefix_count], x[:, prefix_count + count :]], 1)
    expected = model.forward_head(model.norm(x), pre_logits=True)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(actual, backbone.features(images)[0], atol=1e-3)


@pytest.mark.parametrize("name", INSIDE)
def test_clients_with_weights_of_their_own_equal_timms_models(name):
    model = _model(name, img_size=112)
    backbone = _vit(model)
    images = _images(model, clients=2)
    weights = {
        key: (value + 0.1 * torch.randn(2, *value.shape, dtype=torch.float64)).requires_grad_()
        for key, value in backbone.init_weights().items()
    }
    assert not any(key.startswith("rope.") for key in weights)
    features = backbone.features(images, weights=weights)
    answer = torch.randn_like(features)
    (features * answer).sum().backward()
    for k in range(2):
        alone = copy.deepcopy(model)
        alone.load_state_dict({n: v[k].detach() for n, v in weights.items()}, strict=False)
        expected = _features(alone, backbone.pixels(images[k]))
        torch.testing.assert_close(features[k], expected, atol=1e-6, rtol=1e-6)
        (expected * answer[k]).sum().backward()
        gradients = dict(alone.named_parameters())
        for key, value in weights.items():
            torch.testing.assert_close(value.grad[k], gradients[key].grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "vit_small_patch16_dinov3"])
def test_keys_that_an_insert_puts_in_front_have_no_position(name):
    """A key of zeros in front takes a share of the attention that no position changes."""
    model = _model(name, img_size=112, depth=1)
    backbone = _vit(model)
    images = _images(model)
    zeros = torch.zeros(1, 2, 32, dtype=torch.float64)
    places = {1: {"k": prefix(zeros), "v": prefix(zeros)}}
    actual = backbone.blocks(backbone.embed(images), inserts=places)

    block = model.blocks[0]
    x, rope = model._pos_embed(model.patch_embed(backbone.pixels(images[0])))
    attention = block.attn
    with_keys = torch.nn.functional.scaled_dot_product_attention

    def attend(q, k, v, **more):
        longer = [torch.cat([torch.zeros_like(t[:, :, :2]), t], 2) for t in (k, v)]
        return with_keys(q, *longer, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
        expected = block(model.norm_pre(x), rope=rope)
    assert attention.fused_attn
    torch.testing.assert_close(actual[0], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", WITHOUT_CLASS_TOKEN)
def test_the_mean_of_the_patches_stands_for_a_missing_class_token(name):
    model = _model(name, img_size=112)
    backbone = _vit(model)
    assert not backbone.has_class_token
    images = _images(model)
    first = backbone.class_tokens(images)[..., 0, :]
    patches = backbone.embed(images)[..., model.num_prefix_tokens :, :]
    torch.testing.assert_close(first, patches.mean(-2))


def test_pooling_too_few_tokens_is_refused():
    """A method that reads the first token alone cannot pool the patches."""
    backbone = _vit(_model("vit_base_patch16_siglip_gap_224", img_size=112))
    images = _images(backbone.model)
    tokens = backbone.blocks(backbone.embed(images), read=1)
    with refused("pool", "49", "got 1", 'read="pooled"'):
        backbone.pool(tokens)


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "eva02_tiny_patch14_224"])
def test_a_file_of_weights_is_read_at_another_image_size(name, tmp_path):
    path = tmp_path / "model.safetensors"
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5)
    safetensors.torch.save_file(model.state_dict(), path)
    side = model.patch_embed.img_size[0] // 2
    loaded = vit.load({"name": name, "weights": str(path), "image_size": side})
    assert loaded.pixels.size == (side, side)
    for key, value in loaded.model.state_dict().items():
        if key != "pos_embed" and not key.startswith("rope."):
            torch.testing.assert_close(value, model.state_dict()[key], msg=key)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("swin_tiny_patch4_window7_224", ["SwinTransformer", "VisionTransformer or an Eva"]),
        ("samvit_base_patch16", ["VisionTransformerSAM", "VisionTransformer or an Eva"]),
        ("vit_5b_patch16_sapiens2", ["Eva", "keys for every head"]),
        ("vit_pe_lang_large_patch14_448", ["Eva", "pools"]),
    ],
)
def test_a_model_that_cannot_be_run_block_by_block_is_refused(name, words):
    more = {"global_pool": ""} if "pools" in words else {}
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=0, **more)
    with refused("backbone", *words):
        FrozenViT(model)
