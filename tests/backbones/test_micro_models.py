"""The embedded backbones: their architecture, the files that ship, and how these were made."""

import json
import re
import unicodedata

import open_clip
import pytest
import safetensors.torch
import timm
import torch
from safetensors import safe_open
from timm.models.vision_transformer import VisionTransformer

from fedloom.backbones import vit
from fedloom.backbones.clip import micro_clip
from fedloom.backbones.clip.loading import load as load_clip
from fedloom.common.files import canonical
from fedloom.common.receipts import sha256
from fedloom.data.sources import glyphs
from fedloom.machine.install import ROOT
from pretraining import clip as pretrain_clip
from pretraining import loop as pretrain
from pretraining import vit as pretrain_vit
from pretraining import vit_gap as pretrain_gap
from refusals import refused

RESOURCES = ROOT / "workflow/resources"
VIT, GAP, CLIP = (RESOURCES / f"micro_{name}.safetensors" for name in ("vit", "vit_gap", "clip"))
SPEC = {"library": "open_clip", "name": "micro_clip", "weights": str(CLIP)}


@pytest.fixture(scope="module")
def clip():
    return load_clip(SPEC)


@pytest.fixture(scope="module")
def relatives():
    return pretrain_clip.relatives()


@pytest.mark.parametrize(
    ("file", "module", "classes"),
    [
        (VIT, pretrain_vit, lambda: glyphs.classes("source")),
        (GAP, pretrain_gap, lambda: glyphs.classes("source")),
        (CLIP, pretrain_clip, pretrain_clip.classes),
    ],
)
def test_a_shipped_file_names_its_recipe_and_the_classes_of_today(file, module, classes):
    assert file.stat().st_size < 3_000_000
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    about = json.loads(metadata["fedloom"])
    assert metadata == {"fedloom": canonical(about)}
    recipe = vars(module.Recipe())
    assert {name: about[name] for name in recipe} == recipe
    assert about["source"] == pretrain.digest(classes())


@pytest.mark.parametrize("module", [pretrain_vit, pretrain_gap, pretrain_clip])
def test_two_steps_of_pretraining_give_the_same_bytes_twice(tmp_path, monkeypatch, module):
    bad = {"prototypes": 0.02, "zero_shot": 0.02, "strangers": 0.02, "random_context": 0.01}
    poor = bad | {"linear_probe": 0.99}
    monkeypatch.setattr(module, "quality", lambda weights: poor)  # the real one is slow
    small = {"steps": 2, "batch": 16, "classes": 20}
    recipe = module.Recipe(**small)
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    assert module.pretrain(tmp_path / "a.safetensors", tmp_path / "a.md", 0, **small) == poor
    torch.rand(3)  # the global stream must not matter
    made = module.train(recipe)
    parts = made if isinstance(made, tuple) else (made,)
    module.save(*parts, tmp_path / "b.safetensors", recipe)
    torch.set_num_threads(threads)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.md", "a.safetensors", "b.safetensors"]
    assert "bound is missed" in (tmp_path / "a.md").read_text()
    torch.set_rng_state(state)


# ---- micro_vit ------------------------------------------------------------------------------


def test_architecture():
    model = timm.create_model("micro_vit", num_classes=0)
    assert isinstance(model, VisionTransformer)
    assert len(model.blocks) == 12 and model.embed_dim == 96
    assert model.patch_embed.patch_size == (8, 8) and model.patch_embed.num_patches == 16
    assert model.pos_embed.shape == (1, 17, 96)
    assert sum(p.numel() for p in model.parameters()) < 2_000_000
    assert not list(model.buffers())  # eval() has nothing to freeze
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


@pytest.mark.parametrize(("name", "file"), [("micro_vit", VIT), ("micro_vit_gap", GAP)])
def test_the_shipped_file_holds_all_weights_in_half_precision(name, file):
    model = timm.create_model(name, num_classes=0, checkpoint_path=str(file))
    tensors = safetensors.torch.load_file(file)
    assert tensors.keys() == model.state_dict().keys()
    assert {value.dtype for value in tensors.values()} == {torch.float16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_micro_vit_gap_is_a_micro_vit_that_pools_its_patches():
    """The model returns the mean of its patches after the final norm; it has no class token."""
    model = timm.create_model("micro_vit_gap", num_classes=0).eval()
    assert model.cls_token is None and model.pos_embed.shape == (1, 16, 96)
    images = torch.randn(2, 1, 32, 32)
    tokens = model.norm(model.blocks(model.patch_embed(images) + model.pos_embed))
    torch.testing.assert_close(model(images), tokens.mean(1))


@pytest.mark.parametrize(("name", "file"), [("micro_vit", VIT), ("micro_vit_gap", GAP)])
def test_the_micro_vit_is_good_enough_and_the_card_says_what_it_is(name, file):
    """The test leaves out the card's logistic regression, which takes longer than this file."""
    prototypes = pretrain_vit._prototypes(vit.load({"name": name, "weights": str(file)}))
    assert prototypes >= 0.85
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    said = [float(value) / 100 for value in re.findall(r"\| (\d+\.\d)% \|", card)]
    assert said[0] >= 0.93 and said[1:] == pytest.approx([prototypes], abs=0.005)
    assert sha256(file) in card


def test_augmentation_is_seeded_bounded_and_absent_at_strength_0():
    images, *_ = glyphs.render_set(glyphs.classes("target", 8), noise=0.0)
    images = torch.from_numpy(images[..., 0])

    def augmented(strength):
        return pretrain.augment(images, strength, torch.Generator().manual_seed(1))

    assert torch.equal(augmented(1.0), augmented(1.0))
    assert augmented(1.0).shape == (96, 1, 32, 32) and augmented(1.0).abs().max() <= 1
    torch.testing.assert_close(augmented(0.0)[:, 0], images / 127.5 - 1, atol=1e-4, rtol=0)
    assert (augmented(1.0)[:, 0] - (images / 127.5 - 1)).abs().mean() > 0.05


def test_another_seed_gives_other_weights():
    recipes = [pretrain_vit.Recipe(seed=seed, steps=1, batch=8, classes=5) for seed in (0, 1)]
    first, second = (pretrain_vit.train(recipe).state_dict() for recipe in recipes)
    assert not torch.equal(first["patch_embed.conv1.weight"], second["patch_embed.conv1.weight"])


# ---- micro_clip -----------------------------------------------------------------------------


def test_it_is_open_clips_own_class_with_all_tokens(clip):
    model = clip.model
    assert type(model) is open_clip.CLIP
    assert model.token_embedding.weight.shape == (49408, 64)
    assert open_clip.get_tokenizer("micro_clip").vocab_size == 49408
    assert not list(model.visual.buffers())
    images = torch.zeros(1, 32, 32, 1, dtype=torch.uint8)
    final, patches = clip.image_features(images)
    assert final.shape == (1, 64) and patches.shape == (1, 16, 64)


def test_the_shipped_file_holds_the_rows_of_the_vocabulary_that_were_trained(clip):
    tensors = safetensors.torch.load_file(CLIP)
    rows = tensors[micro_clip.ROWS_WEIGHT].long()
    trained = tensors[micro_clip.VOCABULARY]
    vocabulary = clip.model.token_embedding.weight
    assert torch.equal(vocabulary[rows], trained.float())
    same = (vocabulary == micro_clip.fresh().token_embedding.weight).all(1)
    assert not same[rows].any() and same.sum() == 49408 - len(rows)


def test_the_micro_clip_is_good_enough_and_the_card_says_what_it_is():
    found = pretrain_clip.quality(CLIP)
    assert found["zero_shot"] >= 0.5
    card = (RESOURCES / "micro_clip.md").read_text(encoding="utf-8")
    said = [float(value) / 100 for value in re.findall(r"\| (\d+\.\d)% \|", card)]
    order = ("zero_shot", "strangers", "random_context")
    assert said[:3] == pytest.approx([found[name] for name in order], abs=0.005)
    apart = pretrain_clip.strangers()
    assert (
        f"For {sum(glyphs.glyph_name(g) in apart for g in glyphs.classes('target', 100))} of the"
        in card
    )
    assert sha256(CLIP) in card


def test_no_relative_is_or_resembles_a_class_of_the_data_set_or_a_digit(relatives):
    """Pillow draws every character in all faces, and the test correlates every pair of drawings."""
    targets = glyphs.classes("target")
    taboo = [*targets, *"0123456789"]
    assert len(relatives) > 1000 and not set(relatives) & {*taboo, *glyphs.classes("source")}
    assert not {glyphs.glyph_name(glyph) for glyph in relatives} & {
        glyphs.glyph_name(glyph) for glyph in taboo
    }
    assert all(unicodedata.numeric(glyph, None) is None for glyph in relatives)
    drawn = [
        torch.stack([x for glyph in group for x in _drawings(glyph)])
        for group in (relatives, taboo)
    ]
    deviations = [x - x.mean(1, keepdim=True) for x in drawn]
    one, other = (x / x.norm(dim=1, keepdim=True) for x in deviations)
    assert (one @ other.T).max() < pretrain_clip.APART


def test_a_stranger_is_a_letter_that_is_trained_on_in_no_style(relatives):
    apart = pretrain_clip.strangers()
    targets = glyphs.classes("target")
    known = [glyph for glyph in targets if glyphs.glyph_name(glyph) not in apart]
    assert "latin small letter q" in {glyphs.glyph_name(glyph) for glyph in known}
    for glyph in known:
        assert any(glyph in unicodedata.normalize("NFKD", r) for r in relatives)
    strange = {glyph for glyph in targets if glyphs.glyph_name(glyph) in apart}
    assert len(strange) > 60
    for glyph in pretrain_clip.classes():
        assert unicodedata.normalize("NFKD", glyph)[0] not in strange


def _drawings(glyph):
    faces = [face for face in glyphs.faces() if glyphs.has(glyph, face)]
    return [
        torch.from_numpy(glyphs.draw_glyph(glyph, face).copy()).flatten().double() for face in faces
    ]


def test_texts_end_where_they_should():
    names = [glyphs.glyph_name(glyph) for glyph in glyphs.classes("source", 8)]
    texts = pretrain_clip.Texts(names)
    tokenizer = open_clip.get_tokenizer("micro_clip")
    plain = pretrain_clip.Recipe(template=1.0)
    tokens, ends = texts.draw(torch.arange(8), plain, torch.Generator())
    expected = tokenizer([f"a photo of a {name}." for name in names])
    assert torch.equal(ends, expected.argmax(1))
    found = texts.rows[tokens]
    for row, end in enumerate(ends):
        assert torch.equal(found[row, : end + 1], expected[row, : end + 1])
    filled = pretrain_clip.Recipe(template=0.0)
    tokens, ends = texts.draw(torch.arange(8), filled, torch.Generator().manual_seed(0))
    for row, end in enumerate(ends):
        text = tokenizer.decode(texts.rows[tokens[row, 1:end]].tolist())
        assert text.replace(" ", "").endswith(f"{names[row]}.".replace(" ", ""))
        assert texts.rows[tokens[row, end]] == tokenizer.eot_token_id


def test_the_cut_text_tower_of_training_is_open_clips():
    model = micro_clip.fresh().eval()
    tokens = open_clip.tokenize(["a photo of a greek small letter alpha.", "a b"])
    ends = tokens.argmax(1)
    words = model.token_embedding(tokens)[:, : ends.max() + 1]
    found = pretrain_clip._text_features(model, words, ends)
    torch.testing.assert_close(found, model.encode_text(tokens), atol=1e-5, rtol=0)


def test_another_models_file_is_one_line(tmp_path):
    tensors = safetensors.torch.load_file(CLIP)
    tensors.pop("text_projection")
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(tensors, path)
    with refused(path, "text_projection"):
        load_clip(SPEC | {"weights": str(path)})
    with refused("micro_vit.safetensors", "token_embedding"):
        load_clip(SPEC | {"weights": str(RESOURCES / "micro_vit.safetensors")})
