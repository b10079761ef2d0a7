"""The glyph classes: two disjoint sets, one class per shape, the same drawing every time."""

import unicodedata
from collections import Counter
from typing import get_args

import numpy as np
import pytest

from fedloom.data.sources import glyphs
from images_on_disk import build
from pretraining import glyph_classes
from pretraining.glyph_classes import ALIKE, ALIKE_TARGET, TARGETS


@pytest.fixture(scope="module")
def split():
    return {name: glyphs.classes(name) for name in ("source", "target")}


@pytest.fixture(scope="module")
def chosen():
    """Return the classes that their rules choose, all N characters, and their likeness [N, N]."""
    compared = {}
    likeness = glyph_classes.likeness

    def recorded(chars):
        compared.update(chars=chars, alike=likeness(chars))
        return compared["alike"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glyph_classes, "likeness", recorded)
        return glyph_classes.choose(), compared["chars"], compared["alike"]


def test_split_is_disjoint_and_large_enough(split):
    source, target = (set(split[name]) for name in ("source", "target"))
    assert not source & target
    assert len(source) > 1200 and len(target) == TARGETS >= 100
    assert len(source) == len(split["source"]) and len(target) == len(split["target"])


def test_classes_are_those_that_their_rules_choose(chosen):
    assert chosen[0] == glyphs.GLYPH_CLASSES


def test_smaller_sets_begin_larger_ones(split):
    assert glyphs.classes("target", 10) == split["target"][:10]


def test_no_shape_is_two_classes(chosen, split):
    """No two classes look alike, whatever their faces and whatever their split."""
    _, chars, alike = chosen
    rows = [chars.index(glyph) for glyph in split["source"] + split["target"]]
    cosine = alike[np.ix_(rows, rows)]
    np.fill_diagonal(cosine, 0)
    assert cosine.max() < ALIKE
    assert cosine[:, len(split["source"]) :].max() < ALIKE_TARGET


def test_look_alikes_and_digits_are_left_out(split):
    chars = {glyph for glyph in split["source"] + split["target"]}
    assert not chars & set("0123456789\u0417\u2460\u00bd\u00b2\u2161")  # Ze looks like a 3
    assert not any(c.isnumeric() for c in chars)
    assert not any(c.isdigit() for char in chars for c in unicodedata.normalize("NFKD", char))
    for same in ("A\u0391\u0410", "Cc\u0441", "\u03a9\u2126", "\u0394\u2206"):
        assert len(chars & set(same)) == 1, same


def test_no_compound_of_a_target_is_a_source_class(split):
    targets = {glyph for glyph in split["target"]}
    for glyph in split["source"]:
        assert unicodedata.normalize("NFKD", glyph)[0] not in targets


def test_draw_is_centred_white_on_black_and_bounded(split):
    for glyph in split["target"][:20]:
        image = glyphs.draw_glyph(glyph, "DejaVu Sans")
        assert image.shape == (32, 32) and image.dtype == np.uint8
        rows = np.nonzero(image.max(1))[0]
        columns = np.nonzero(image.max(0))[0]
        assert image.max() > 128 and image[0].max() == image[-1].max() == 0
        assert abs(rows.mean() - 15.5) <= 1 and abs(columns.mean() - 15.5) <= 1
        assert max(np.ptp(rows), np.ptp(columns)) + 1 == pytest.approx(0.8 * 32, abs=2)


def test_affine_maps_output_to_input():
    glyph = "F"
    plain = glyphs.draw_glyph(glyph, "STIX")
    assert np.array_equal(glyphs.draw_glyph(glyph, "STIX", affine=[[1, 0, 0], [0, 1, 0]]), plain)
    right = glyphs.draw_glyph(
        glyph, "STIX", affine=[[1, 0, -4 / 16], [0, 1, 0]]
    )  # each pixel reads 4 px further left
    assert np.array_equal(right[:, 4:], plain[:, :-4])
    flipped = glyphs.draw_glyph(glyph, "STIX", affine=[[-1, 0, 0], [0, 1, 0]])
    assert np.abs(flipped.astype(int) - plain[:, ::-1]).max() <= 1


def test_a_face_without_the_character_is_an_error():
    with pytest.raises(ValueError, match="U\\+10A0"):
        glyphs.draw_glyph("\u10a0", "STIX")


def test_render_set_is_seeded_and_complete(split):
    some = split["target"][:5]
    images, labels, where, names = glyphs.render_set(some, draws=2, seed=3)
    assert images.shape == (5 * 12 * 2, 32, 32, 1) and images.dtype == np.uint8
    assert np.array_equal(np.bincount(labels), [24] * 5)
    assert set(where) == set(glyphs.faces()) and len(set(glyphs.faces().values())) == 4
    assert names[0] == unicodedata.name(some[0]).lower() and len(set(names)) == 5
    assert np.array_equal(images, glyphs.render_set(some, draws=2, seed=3)[0])
    assert not np.array_equal(images, glyphs.render_set(some, draws=2, seed=4)[0])
    # a class looks the same in a larger set
    fewer = glyphs.render_set(some[1:2], draws=2, seed=3)[0]
    assert np.array_equal(images[labels == 1], fewer)


def test_glyphs_are_drawn_the_same_every_time(tmp_path):
    (tmp_path / "again").mkdir()
    options = {"source": "glyphs", "classes": 10, "draws": 4}
    store, about = build(tmp_path, **options)
    build(tmp_path / "again", **options)
    name = "images.arrow"
    assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert len(store) == about["images"] == 10 * 12 * 4
    assert store.shape == (32, 32, 1)
    assert all(unicodedata.lookup(name.upper()) for name in about["classes"])
    cells = Counter(zip(store.labels, store.domains, store.test, strict=True))
    assert len(set(store.domains)) == 4
    assert {count for (*_, test), count in cells.items() if test} == {3}
    assert {count for (*_, test), count in cells.items() if not test} == {9}


def test_no_drawing_of_a_style_is_on_both_sides_of_the_split(tmp_path):
    """A class in a face is tested in all styles or in none; each style draws from its own seed."""
    styles = ["plain", "outline", "noisy"]
    listed = glyphs.read({"classes": 4, "draws": 2, "styles": styles, "test_fraction": 0.25})
    _, base, faces, _ = glyphs.render_set(glyphs.classes("target", 4), 2)
    groups = np.tile([f"{c} {f}" for c, f in zip(base, faces, strict=True)], 3)
    tested = {group for group, test in zip(groups, listed.test, strict=True) if test}
    trained = {group for group, test in zip(groups, listed.test, strict=True) if not test}
    assert not tested & trained and len(tested) == 4 * 3
    assert listed.domains.tolist() == np.repeat(styles, 4 * 12 * 2).tolist()
    assert listed.labels.tolist() == np.tile(base, 3).tolist()
    plain = np.stack([np.asarray(item.load()) for item in listed.items()])[: len(base)]
    assert not np.array_equal(plain, glyphs.render_set(glyphs.classes("target", 4), 2)[0][..., 0])


@pytest.mark.parametrize("style", get_args(glyphs.Style))
def test_a_style_changes_images_alike_every_time(style):
    image = glyphs.draw_glyph("F", "STIX")
    once, again = (glyphs.restyle(image[None], style, ord("F")) for _ in range(2))
    assert once.dtype == np.uint8 and once.shape == (1, 32, 32) and np.array_equal(once, again)
    assert np.array_equal(once[0], image) == (style == "plain")
    if style == "inverted":
        assert np.array_equal(once[0], 255 - image)
