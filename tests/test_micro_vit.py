"""The embedded backbone: its architecture, the file that ships, and how it was made."""

import json
import re
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from timm.models.vision_transformer import VisionTransformer

from fedloom.backbones import vit
from fedloom.common.io import canonical
from fedloom.common.receipts import sha256
from fedloom.data import glyphs
from pretraining import loop as pretrain
from pretraining import vit as pretrain_vit

RESOURCES = Path(__file__).parents[1] / "workflow" / "resources"
WEIGHTS = RESOURCES / "micro_vit.safetensors"


@pytest.fixture(scope="module")
def shipped():
    model = timm.create_model("micro_vit", num_classes=0, checkpoint_path=str(WEIGHTS))
    return model.eval()


def test_architecture():
    model = timm.create_model("micro_vit", num_classes=0)
    assert isinstance(model, VisionTransformer)
    assert len(model.blocks) == 12 and model.embed_dim == 96
    assert model.patch_embed.patch_size == (8, 8) and model.patch_embed.num_patches == 16
    assert model.pos_embed.shape == (1, 17, 96)
    assert sum(p.numel() for p in model.parameters()) < 2_000_000
    assert not list(model.buffers())  # nothing that eval() would have to freeze
    cfg = timm.data.resolve_model_data_config(model)
    assert (cfg["input_size"], cfg["mean"], cfg["std"]) == ((1, 32, 32), (0.5,), (0.5,))
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 96)
    assert timm.create_model("micro_vit", num_classes=7)(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    "wrong",
    [{"patch_size": 16}, {"img_size": 36}, {"dynamic_img_size": True, "dynamic_img_pad": True}],
)
def test_stem_refuses_what_it_cannot_do(wrong):
    with pytest.raises(ValueError):
        timm.create_model("micro_vit", num_classes=0, **wrong)


def test_the_shipped_file(shipped):
    assert WEIGHTS.stat().st_size < 3_000_000
    with safe_open(WEIGHTS, "pt") as file:
        assert list(file.metadata()) == ["fedloom"]
        about = json.loads(file.metadata()["fedloom"])
        assert file.metadata()["fedloom"] == canonical(about)
        names = set(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.float16}
    assert names == set(shipped.state_dict())
    assert {p.dtype for p in shipped.parameters()} == {torch.float32}
    recipe = pretrain_vit.Recipe()
    assert {name: about[name] for name in vars(recipe)} == vars(recipe)


def test_the_shipped_file_was_trained_on_todays_source_classes():
    with safe_open(WEIGHTS, "pt") as file:
        about = json.loads(file.metadata()["fedloom"])
    assert about["source"] == pretrain.digest(glyphs.classes("source"))


def test_the_shipped_file_is_good_enough_and_the_card_says_what_it_is():
    """The card's other number, a logistic regression, takes longer than the rest of this file."""
    prototypes = pretrain_vit._prototypes(vit.load({"name": "micro_vit", "weights": str(WEIGHTS)}))
    assert prototypes >= 0.85
    card = (RESOURCES / "micro_vit.md").read_text(encoding="utf-8")
    said = [float(value) / 100 for value in re.findall(r"\| (\d+\.\d)% \|", card)]
    assert said[0] >= 0.93 and said[1:] == pytest.approx([prototypes], abs=0.005)
    assert sha256(WEIGHTS) in card


def test_augmentation_is_seeded_bounded_and_absent_at_strength_0():
    images, *_ = glyphs.render_set(glyphs.classes("target", 8), noise=0.0)
    images = torch.from_numpy(images[..., 0])

    def augmented(strength):
        return pretrain.augment(images, strength, torch.Generator().manual_seed(1))

    assert torch.equal(augmented(1.0), augmented(1.0))
    assert augmented(1.0).shape == (96, 1, 32, 32) and augmented(1.0).abs().max() <= 1
    torch.testing.assert_close(augmented(0.0)[:, 0], images / 127.5 - 1, atol=1e-4, rtol=0)
    assert (augmented(1.0)[:, 0] - (images / 127.5 - 1)).abs().mean() > 0.05


def test_two_steps_of_pretraining_give_the_same_bytes_twice(tmp_path, monkeypatch):
    poor = {"linear_probe": 0.99, "prototypes": 0.02}
    monkeypatch.setattr(pretrain_vit, "quality", lambda weights: poor)  # slow on such weights
    small = {"steps": 2, "batch": 16, "classes": 20}
    recipe = pretrain_vit.Recipe(**small)
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    assert pretrain_vit.pretrain(tmp_path / "a.safetensors", tmp_path / "a.md", 0, **small) == poor
    torch.rand(3)  # the global stream must not matter
    pretrain_vit.save(pretrain_vit.train(recipe), tmp_path / "b.safetensors", recipe)
    torch.set_num_threads(threads)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.md",
        "a.safetensors",
        "b.safetensors",
    ]
    assert not pretrain_vit.reached(poor) and "bound is missed" in (tmp_path / "a.md").read_text()
    torch.set_rng_state(state)


def test_another_seed_gives_other_weights():
    recipes = [pretrain_vit.Recipe(seed=seed, steps=1, batch=8, classes=5) for seed in (0, 1)]
    first, second = (pretrain_vit.train(recipe).state_dict() for recipe in recipes)
    assert not torch.equal(first["patch_embed.conv1.weight"], second["patch_embed.conv1.weight"])
