"""The micro CLIP: what it is trained on, and how it is made."""

import unicodedata

import open_clip
import pytest
import torch

from fedloom.backbones import micro_clip, pretrain_clip
from fedloom.data import glyphs


@pytest.fixture(scope="module")
def relatives():
    return pretrain_clip.relatives()


def test_no_relative_is_or_resembles_a_class_of_the_data_set_or_a_digit(relatives):
    """In any two faces, by Pillow's drawings, correlated one pair at a time."""
    targets = glyphs.classes("target")
    taboo = [*targets, *map(glyphs.Glyph, "0123456789")]
    assert len(relatives) > 1000 and not set(relatives) & {*taboo, *glyphs.classes("source")}
    assert not {glyph.name for glyph in relatives} & {glyph.name for glyph in taboo}
    assert all(unicodedata.numeric(glyph.char, None) is None for glyph in relatives)
    numbers = torch.Generator().manual_seed(0)
    for i, j in zip(
        torch.randint(len(relatives), (300,), generator=numbers).tolist(),
        torch.randint(len(taboo), (300,), generator=numbers).tolist(),
        strict=True,
    ):
        for one in _drawings(relatives[i]):
            for other in _drawings(taboo[j]):
                assert torch.corrcoef(torch.stack([one, other]))[0, 1] < pretrain_clip.APART


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
    poor = {"zero_shot": 0.02, "random_context": 0.01}
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
