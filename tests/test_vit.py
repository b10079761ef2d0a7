"""The backbone adapter: exactly timm's model, and weights in timm's own formats."""

import numpy as np
import pytest
import safetensors.torch
import timm
import torch

from fedloom.backbones import vit
from fedloom.backbones.pixels import Pixels
from fedloom.backbones.vit import FrozenViT, insert, replace
from fedloom.common.errors import FedLoomError

NAME = "vit_tiny_patch16_224"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.create_model(NAME, img_size=32, num_classes=7).eval()


@pytest.fixture
def images():
    return torch.randint(0, 256, (2, 3, 32, 32, 3), dtype=torch.uint8)  # [K, B, H, W, 3]


def _spec(path, **more):
    return {"library": "timm", "name": NAME, "weights": str(path), "image_size": 32, **more}


def test_no_prompts_reproduce_timms_own_forward(model, images):
    backbone = FrozenViT(model)
    x = (images.flatten(0, 1).movedim(-1, 1) / 255 - 0.5) / 0.5  # the model's mean and deviation
    expected = model(x)
    tokens = backbone.blocks(backbone.embed(images))
    head = model.head.weight.expand(2, -1, -1)
    logits = backbone.logits(tokens, head) + model.head.bias
    torch.testing.assert_close(logits.flatten(0, 1), expected, atol=1e-5, rtol=1e-5)


def test_class_tokens_are_those_at_every_blocks_input(model, images):
    backbone = FrozenViT(model)
    tokens, seen = backbone.embed(images), []
    for block in model.blocks:
        seen.append(tokens[..., 0, :])
        tokens = block(tokens.flatten(0, 1)).view_as(tokens)
    final = model.norm(tokens)[..., 0, :]
    actual = backbone.class_tokens(images)
    torch.testing.assert_close(actual, torch.stack([*seen, final], -2), atol=1e-6, rtol=1e-6)


def test_prompts_stand_behind_the_class_token():
    tokens = torch.arange(4.0).view(1, 1, 4, 1).expand(2, 3, 4, 1)
    prompts = torch.tensor([[[10.0], [11.0]], [[20.0], [21.0]]])  # [K, P, d]
    actual = insert(tokens, prompts)
    assert actual[0, 2, :, 0].tolist() == [0, 10, 11, 1, 2, 3]
    assert actual[1, 0, :, 0].tolist() == [0, 20, 21, 1, 2, 3]
    each = torch.arange(6.0).view(2, 3, 1, 1) + 50  # [K, B, P, d]
    actual = replace(actual, each)
    assert actual[1, 2, :, 0].tolist() == [0, 55, 21, 1, 2, 3]


def test_prompts_start_in_vpts_range(model):
    v = (6 / (3 * 16 * 16 + 192)) ** 0.5
    drawn = FrozenViT(model).init_prompts(500, torch.Generator().manual_seed(0))
    assert drawn.shape == (500, 192)
    assert 0.99 * v < drawn.abs().max() <= v
    assert abs(drawn.mean()) < 0.01 * v


def test_gray_and_colour_images_fit_either_kind_of_model(model):
    gray = torch.randint(0, 256, (2, 8, 8, 1), dtype=torch.uint8)
    colour = gray.expand(2, 8, 8, 3)
    backbone = FrozenViT(model)
    torch.testing.assert_close(backbone.embed(gray), backbone.embed(colour))
    micro = FrozenViT(timm.create_model("micro_vit", num_classes=0))
    torch.testing.assert_close(micro.embed(gray), micro.embed(colour), atol=1e-5, rtol=1e-5)


def test_a_local_checkpoint_in_timms_format(model, images, tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)  # with its classifier of 7 classes
    loaded = vit.load(_spec(path))
    torch.testing.assert_close(loaded.class_tokens(images), FrozenViT(model).class_tokens(images))
    assert not any(p.requires_grad for p in loaded.model.parameters())
    larger = vit.load(_spec(path) | {"image_size": 64})
    assert larger.embed(images).shape == (2, 3, 17, 192), "position embeddings are resized"


def test_googles_npz_checkpoint(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model(NAME, num_classes=0).eval()
    arrays = _as_jax(model)
    np.savez(tmp_path / "model.npz", **arrays)
    loaded = vit.load({"name": NAME, "weights": str(tmp_path / "model.npz")})
    image = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8)
    torch.testing.assert_close(loaded.class_tokens(image), FrozenViT(model).class_tokens(image))


def _as_jax(model):
    """The model's tensors under the names and layouts of Google's original release."""
    width, heads = model.embed_dim, model.blocks[0].attn.num_heads
    side = width // heads
    tensors = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    arrays = {
        "embedding/kernel": tensors["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": tensors["patch_embed.proj.bias"],
        "cls": tensors["cls_token"],
        "Transformer/posembed_input/pos_embedding": tensors["pos_embed"],
        "Transformer/encoder_norm/scale": tensors["norm.weight"],
        "Transformer/encoder_norm/bias": tensors["norm.bias"],
    }
    for i in range(len(model.blocks)):
        ours, theirs = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
        attention = theirs + "MultiHeadDotProductAttention_1/"
        weights = np.split(tensors[ours + "attn.qkv.weight"], 3)
        biases = np.split(tensors[ours + "attn.qkv.bias"], 3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            arrays[f"{attention}{name}/kernel"] = weight.T.reshape(width, heads, side)
            arrays[f"{attention}{name}/bias"] = bias.reshape(heads, side)
        projection = tensors[ours + "attn.proj.weight"].T.reshape(heads, side, width)
        arrays[f"{attention}out/kernel"] = projection
        arrays[f"{attention}out/bias"] = tensors[ours + "attn.proj.bias"]
        for number, norm in ((0, "norm1"), (2, "norm2")):
            arrays[f"{theirs}LayerNorm_{number}/scale"] = tensors[f"{ours}{norm}.weight"]
            arrays[f"{theirs}LayerNorm_{number}/bias"] = tensors[f"{ours}{norm}.bias"]
        for number in (0, 1):
            dense = f"{theirs}MlpBlock_3/Dense_{number}/"
            arrays[dense + "kernel"] = tensors[f"{ours}mlp.fc{number + 1}.weight"].T
            arrays[dense + "bias"] = tensors[f"{ours}mlp.fc{number + 1}.bias"]
    return arrays


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"name": "vit_tinny_patch16_224"}, "has no such model"),
        ({"weights": "nowhere.safetensors"}, "no such file"),
        ({"weights": "model.pth"}, "only .safetensors and .npz are read"),
        ({"name": "resnet18"}, "cannot load weights"),
    ],
)
def test_bad_backbones_are_named(spec, line, tmp_path):
    good = tmp_path / "model.safetensors"
    good.write_bytes(b"")
    with pytest.raises(FedLoomError, match=line) as error:
        vit.load(_spec(good) | spec)
    assert "\n" not in str(error.value)


def test_a_truncated_or_foreign_checkpoint_is_refused(model, tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FedLoomError, match=r"cannot load weights '.*model.safetensors'"):
        vit.load(_spec(path))
    half = {k: v for k, v in model.state_dict().items() if "blocks.7" not in k}
    safetensors.torch.save_file(half, path)
    with pytest.raises(FedLoomError, match=r"[Mm]issing key.*blocks\.7"):
        vit.load(_spec(path))


def test_a_model_without_class_token_is_refused():
    with pytest.raises(FedLoomError, match="no class token"):
        FrozenViT(timm.create_model("vit_base_patch16_siglip_224", num_classes=0))


def test_an_unreachable_hub_is_one_line(monkeypatch):
    def offline(*arguments, **keywords):
        raise OSError("We couldn't connect to the hub\nand more lines")

    monkeypatch.setattr("timm.models._hub.hf_hub_download", offline)
    monkeypatch.setattr("timm.models._builder.has_hf_hub", lambda necessary=False: True)
    with pytest.raises(FedLoomError, match=r"cannot load weights 'hub'") as error:
        vit.load({"name": "vit_tiny_patch16_224.augreg_in21k", "weights": "hub"})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("channels", "given", "side"), [(3, 3, 8), (3, 1, 8), (1, 3, 8), (3, 3, 5)]
)
def test_pixels_are_resized_recoloured_and_normalised_and_the_images_stay(channels, given, side):
    mean, std = [0.4, 0.5, 0.6][:channels], [0.2, 0.3, 0.4][:channels]
    images = torch.randint(0, 256, (2, side, side, given)).float()
    before = images.clone()
    actual = Pixels((8, 8), channels, mean, std, "bilinear")(images)
    x = before.movedim(-1, 1).double() / 255
    if channels < given:
        x = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    if side != 8:
        x = torch.nn.functional.interpolate(x, (8, 8), mode="bilinear", antialias=True)
    expected = (x - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=0)
    assert torch.equal(images, before)
