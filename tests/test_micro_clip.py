"""The embedded CLIP: the file that ships, what it was trained on, and how it was made."""

import json
import re
import unicodedata
from pathlib import Path

import open_clip
import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from fedloom.backbones.clip import micro_clip
from fedloom.backbones.clip.model import load as load_clip
from fedloom.common.io import canonical
from fedloom.common.receipts import sha256
from fedloom.data import glyphs
from pretraining import clip as pretrain_clip
from pretraining import loop as pretrain
from refusals import refused

RESOURCES = Path(__file__).parents[1] / "workflow" / "resources"
WEIGHTS = RESOURCES / "micro_clip.safetensors"
SPEC = {"library": "open_clip", "name": "micro_clip", "weights": str(WEIGHTS)}


@pytest.fixture(scope="module")
def shipped():
    return load_clip(SPEC)


@pytest.fixture(scope="module")
def relatives():
    return pretrain_clip.relatives()


def test_it_is_open_clips_own_class_with_all_tokens(shipped):
    model = shipped.model
    assert type(model) is open_clip.CLIP
    assert model.token_embedding.weight.shape == (49408, 64)
    assert open_clip.get_tokenizer("micro_clip").vocab_size == 49408
    assert not list(model.visual.buffers())
    images = torch.zeros(1, 32, 32, 1, dtype=torch.uint8)
    final, patches = shipped.image_features(images)
    assert final.shape == (1, 64) and patches.shape == (1, 16, 64)


def test_the_shipped_file(shipped):
    assert WEIGHTS.stat().st_size < 3_000_000
    with safe_open(WEIGHTS, "pt") as file:
        assert list(file.metadata()) == ["fedloom"]
        about = json.loads(file.metadata()["fedloom"])
        assert file.metadata()["fedloom"] == canonical(about)
        rows = file.get_tensor(micro_clip.ROWS)
        trained = file.get_tensor(micro_clip.VOCABULARY)
    recipe = pretrain_clip.Recipe()
    assert {name: about[name] for name in vars(recipe)} == vars(recipe)
    vocabulary = shipped.model.token_embedding.weight
    assert torch.equal(vocabulary[rows.long()], trained.float())
    fresh = micro_clip.fresh().token_embedding.weight
    same = (vocabulary == fresh).all(1)
    assert not same[rows.long()].any() and same.sum() == 49408 - len(rows)


def test_the_shipped_file_is_good_enough_and_the_card_says_what_it_is():
    found = pretrain_clip.quality(WEIGHTS)
    assert found["zero_shot"] >= 0.5
    card = (RESOURCES / "micro_clip.md").read_text(encoding="utf-8")
    said = [float(value) / 100 for value in re.findall(r"\| (\d+\.\d)% \|", card)]
    order = ("zero_shot", "strangers", "random_context")
    assert said[:3] == pytest.approx([found[name] for name in order], abs=0.005)
    apart = pretrain_clip.strangers()
    assert f"For {sum(g.name in apart for g in glyphs.classes('target', 100))} of the" in card
    assert sha256(WEIGHTS) in card


def test_it_was_trained_on_todays_characters():
    with safe_open(WEIGHTS, "pt") as file:
        about = json.loads(file.metadata()["fedloom"])
    assert about["source"] == pretrain.digest(pretrain_clip.classes())


def test_no_relative_is_or_resembles_a_class_of_the_data_set_or_a_digit(relatives):
    """In any two faces, by Pillow's drawings: the correlation of every pair."""
    targets = glyphs.classes("target")
    taboo = [*targets, *map(glyphs.Glyph, "0123456789")]
    assert len(relatives) > 1000 and not set(relatives) & {*taboo, *glyphs.classes("source")}
    assert not {glyph.name for glyph in relatives} & {glyph.name for glyph in taboo}
    assert all(unicodedata.numeric(glyph.char, None) is None for glyph in relatives)
    drawn = [
        torch.stack([x for glyph in group for x in _drawings(glyph)])
        for group in (relatives, taboo)
    ]
    deviations = [x - x.mean(1, keepdim=True) for x in drawn]
    one, other = (x / x.norm(dim=1, keepdim=True) for x in deviations)
    assert (one @ other.T).max() < pretrain_clip.APART


def test_a_stranger_is_a_letter_that_is_trained_on_in_no_style(relatives):
    apart, targets = pretrain_clip.strangers(), glyphs.classes("target")
    known = [glyph for glyph in targets if glyph.name not in apart]
    assert "latin small letter q" in {glyph.name for glyph in known}
    for glyph in known:
        assert any(glyph.char in unicodedata.normalize("NFKD", r.char) for r in relatives)
    strange = {glyph.char for glyph in targets if glyph.name in apart}
    assert len(strange) > 60
    for glyph in pretrain_clip.classes():
        assert unicodedata.normalize("NFKD", glyph.char)[0] not in strange


def _drawings(glyph):
    faces = [face for face in glyphs.faces() if glyphs.has(glyph, face)]
    return [torch.from_numpy(glyphs.draw(glyph, face).copy()).flatten().double() for face in faces]


def test_texts_end_where_they_should():
    names = [glyph.name for glyph in glyphs.classes("source", 8)]
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


def test_two_steps_of_pretraining_give_the_same_bytes_twice(tmp_path, monkeypatch, relatives):
    poor = {"zero_shot": 0.02, "strangers": 0.02, "random_context": 0.01}
    monkeypatch.setattr(pretrain_clip, "quality", lambda weights: poor)
    small = {"steps": 2, "batch": 16, "classes": 20}
    recipe = pretrain_clip.Recipe(**small)
    threads = torch.get_num_threads()
    found = pretrain_clip.pretrain(tmp_path / "a.safetensors", tmp_path / "a.md", 0, **small)
    assert found == poor and "bound is missed" in (tmp_path / "a.md").read_text()
    torch.rand(3)  # the global stream must not matter
    model, rows = pretrain_clip.train(recipe)
    pretrain_clip.save(model, rows, tmp_path / "b.safetensors", recipe)
    torch.set_num_threads(threads)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_another_models_file_is_one_line(tmp_path):
    tensors = safetensors.torch.load_file(WEIGHTS)
    tensors.pop("text_projection")
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(tensors, path)
    with refused(path, "text_projection"):
        load_clip(SPEC | {"weights": str(path)})
    with refused("micro_vit.safetensors", "token_embedding"):
        load_clip(SPEC | {"weights": str(RESOURCES / "micro_vit.safetensors")})
