"""The backbone adapter: exactly timm's model, and weights in timm's own formats."""

import pytest
import safetensors.torch
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from fedloom.backbones import vit
from fedloom.backbones.backbone import Pixels
from fedloom.backbones.vit import FrozenViT, insert, replace
from refusals import refused

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
    tokens = backbone.embed(images)
    seen = []
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


def test_a_local_checkpoint_in_timms_format(model, images, tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)  # with its classifier of 7 classes
    loaded = vit.load(_spec(path))
    torch.testing.assert_close(loaded.class_tokens(images), FrozenViT(model).class_tokens(images))
    assert not any(p.requires_grad for p in loaded.model.parameters())
    larger = vit.load(_spec(path) | {"image_size": 64})
    assert larger.embed(images).shape == (2, 3, 17, 192), "position embeddings are resized"


def test_googles_npz_checkpoint_is_left_to_timm(tmp_path, monkeypatch):
    (tmp_path / "model.npz").write_bytes(b"")
    read = []
    monkeypatch.setattr(VisionTransformer, "load_pretrained", lambda _, path: read.append(path))
    vit.load({"name": NAME, "weights": str(tmp_path / "model.npz")})
    assert read == [str(tmp_path / "model.npz")]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "vit_tinny_patch16_224"}, ["vit_tinny_patch16_224", "no such model"]),
        ({"weights": "nowhere.safetensors"}, [NAME, "nowhere.safetensors"]),
        ({"weights": "model.pth"}, [NAME, "model.pth", ".safetensors and .npz"]),
        (
            {"name": "eva02_tiny_patch14_224", "weights": "model.npz"},
            ["eva02_tiny_patch14_224", ".safetensors", "model.npz"],
        ),
        (
            {"name": "vit_small_patch16_dinov3", "weights": "none", "image_size": 50},
            ["vit_small_patch16_dinov3", "image_size", "multiple of 16", "50", "48 or 64"],
        ),
        ({"name": "resnet18"}, ["resnet18", "cannot load"]),
    ],
)
def test_bad_backbones_are_named(spec, words, tmp_path):
    good = tmp_path / "model.safetensors"
    good.write_bytes(b"")
    with refused(*words):
        vit.load(_spec(good) | spec)


def test_a_truncated_or_foreign_checkpoint_is_refused(model, tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with refused(path):
        vit.load(_spec(path))
    half = {k: v for k, v in model.state_dict().items() if "blocks.7" not in k}
    safetensors.torch.save_file(half, path)
    with refused(path, "blocks.7"):
        vit.load(_spec(path))


def test_an_image_that_is_made_smaller_is_the_mean_of_what_it_covers():
    """Stripes of one pixel shrink to a third; the filter is a triangle of three pixels a side.

    Without antialiasing every third pixel would remain, black or white.
    """
    stripes = torch.tensor([0, 255] * 12).expand(24, 24)[None, ..., None]
    preprocessing = {"mean": [0.0], "std": [1.0], "interpolation": "bilinear"}
    columns = Pixels((8, 8), 1, preprocessing)(stripes.float())[0, 0]
    weights = torch.tensor([1, 2, 3, 2, 1], dtype=torch.float64) / 9
    for column in range(1, 7):  # the filters of other columns reach over the edge
        covered = stripes[0, 0, 3 * column - 1 : 3 * column + 4, 0].double() / 255
        assert columns[:, column].double() == pytest.approx([float(weights @ covered)] * 8)


@pytest.mark.parametrize(
    ("channels", "given", "side"), [(3, 3, 8), (3, 1, 8), (1, 3, 8), (3, 3, 5)]
)
def test_pixels_are_resized_recoloured_and_normalised_and_the_images_stay(channels, given, side):
    mean = [0.4, 0.5, 0.6][:channels]
    std = [0.2, 0.3, 0.4][:channels]
    images = torch.randint(0, 256, (2, side, side, given)).float()
    before = images.clone()
    preprocessing = {"mean": mean, "std": std, "interpolation": "bilinear"}
    actual = Pixels((8, 8), channels, preprocessing)(images)
    x = before.movedim(-1, 1).double() / 255
    if channels < given:
        x = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    if side != 8:
        x = torch.nn.functional.interpolate(x, (8, 8), mode="bilinear", antialias=True)
    expected = (x - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=0)
    assert torch.equal(images, before)
