"""How labels that lists, tables and folders give become classes."""

import logging
from unicodedata import normalize

import numpy as np
import pytest

from fedloom.data.labels import classes_from_labels, tidy_names
from images_on_disk import build, image_folder, noise, save, write_parquet
from refusals import refused

COMPOSED, DECOMPOSED = (normalize(form, "café") for form in ("NFC", "NFD"))


def of(*labels):
    """Return the classes of images with these labels, which come from line 0, line 1 and so on."""
    return classes_from_labels(labels, "line {}".format)


def test_words_are_classes_in_alphabetical_order():
    found = of("fox", "ant", "fox")
    assert (found.numbers.tolist(), found.labels, found.named) == ([1, 0, 1], ["ant", "fox"], True)


def test_whole_numbers_are_classes_by_their_value_and_no_names():
    """A table writes 0 as 0.0 where another cell of the column is empty."""
    found = of("10", "07", "7", "7.0", "0.0")
    assert found.numbers.tolist() == [2, 1, 1, 1, 0]
    assert (found.labels, found.named) == (["0", "7", "10"], False)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (("cat", "", "dog"), ["line 1", "got none"]),
        (("cat", "  "), ["line 1", "got none"]),
        (("0", "9" * 5000), ["line 1", "18 digits", "got 5000"]),
        (("0", "-1"), ["line 1", "'-1'", "hidden"]),
        (("-1.0", "-1.0"), ["line 0", "'-1.0'"]),
        (("0", "0.5"), ["line 1", "'0.5'", "whole number"]),
        (("0", "one"), ["line 1", "'one' beside '0'", "class_names"]),
        (("red fox", "red\nfox"), ["line 1", r"'red\nfox'"]),
    ],
)
def test_labels_that_are_refused(labels, words):
    with refused(*words):
        of(*labels)


def test_blanks_and_the_spelling_of_accents_make_no_class_and_the_log_says_so(caplog):
    assert COMPOSED != DECOMPOSED
    with caplog.at_level(logging.WARNING):
        assert tidy_names([COMPOSED, "cat "]) == [COMPOSED, "cat"]
        assert not caplog.text
        assert of(COMPOSED, DECOMPOSED, "cat", "cat ").labels == [COMPOSED, "cat"]
    assert f"'{COMPOSED}' is one name" in caplog.text and "'cat' is one name" in caplog.text


def folders(tmp_path, *names):
    """Write images below train/ and test/ in folders of these classes; return the source's keys."""
    for half, own in zip(("train", "test"), names, strict=True):
        image_folder(tmp_path / "root" / half, own, count=2)
    return {"source": "folder", "root": str(tmp_path / "root")}


@pytest.mark.parametrize("twin", [DECOMPOSED, f"{COMPOSED} "])
def test_a_class_has_one_name_in_train_and_test(twin, tmp_path):
    keys = folders(tmp_path, [COMPOSED, "ant"], [twin, "ant"])
    store, about = build(tmp_path, **keys)
    assert about["classes"] == ["ant", COMPOSED]
    assert np.bincount(store.labels[store.test]).tolist() == [2, 2]


def test_a_domain_has_one_name_too(tmp_path):
    for half, domain in (("train", COMPOSED), ("test", DECOMPOSED)):
        image_folder(tmp_path / "root" / half / domain, ["ant"], count=2)
    store, _ = build(tmp_path, source="folder", root=str(tmp_path / "root"), domains=True)
    assert {*store.domains} == {COMPOSED}


@pytest.mark.parametrize("other", [["dog"], ["dog", "Dog"]])
def test_classes_that_differ_in_case_alone_are_refused(other, tmp_path):
    keys = folders(tmp_path, ["Dog", "ant"], [*other, "ant"])
    with refused("'Dog'", "'dog'", "case"):
        build(tmp_path, **keys)


def test_letters_may_differ_in_case(tmp_path):
    keys = folders(tmp_path, ["A", "a"], ["A", "a"])
    assert build(tmp_path, **keys)[1]["classes"] == ["A", "a"]
    several = {"source": "several", "image_size": 8, "parts": {"letters": keys}}
    assert build(tmp_path, **several)[1]["classes"] == ["letters/A", "letters/a"]


def test_names_of_classes_differ_by_more_than_case(tmp_path):
    write_parquet(tmp_path / "x.parquet", [0, 1, 0, 1])
    keys = {"source": "parquet", "train_files": str(tmp_path / "x.parquet")}
    with refused("'Dog'", "'dog'", "class_names"):
        build(tmp_path, **keys, class_names=["Dog", "dog"])


def test_folders_that_are_numbers_are_no_names(tmp_path):
    """A CLIP method refuses unnamed classes, since "a photo of a 10." would be no prompt."""
    keys = folders(tmp_path, ["2", "10"], ["2", "10"])
    _, about = build(tmp_path, **keys)
    assert (about["classes"], about["named"]) == (["10", "2"], False)
    (tmp_path / "root/names.txt").write_text("2 ant\n10 bee\n")
    assert "named" not in build(tmp_path, **keys, names="names.txt")[1]


def test_numbers_in_a_list_and_in_folders_of_one_are_no_names(tmp_path):
    root = tmp_path / "root"
    for seed, path in enumerate(("0/1.png", "1/2.png", "1/3.png")):
        save(root / path, noise(seed))
    (root / "all.csv").write_text("path,label\n0/1.png,0.0\n1/2.png,1.0\n1/3.png,1\n")
    columns = {"path_column": "path", "label_column": "label"}
    keys = {"source": "lists", "root": str(root), "train": "all.csv", **columns}
    for more in ({}, {"class_from": "folder"}):
        _, about = build(tmp_path, **keys, **more)
        assert (about["classes"], about["named"]) == (["0", "1"], False)


@pytest.mark.parametrize("labels", [["2", "10", "2", "10"], [2, 10, 2, 10]])
def test_numbers_in_parquet_are_no_names(labels, tmp_path):
    write_parquet(tmp_path / "x.parquet", labels)
    store, about = build(tmp_path, source="parquet", train_files=str(tmp_path / "x.parquet"))
    assert (about["classes"], about["named"]) == (["2", "10"], False)
    assert store.labels.tolist() == [0, 1, 0, 1]


def test_a_hidden_label_in_parquet_is_no_class(tmp_path):
    for name, labels in (("a", [0, 1, 0]), ("b", [1, -1])):
        write_parquet(tmp_path / f"{name}.parquet", labels)
    with refused("b.parquet row 1", "'-1'", "hidden"):
        build(tmp_path, source="parquet", train_files=str(tmp_path / "*.parquet"))


@pytest.mark.parametrize("halves", [("training", "testing"), ("Train", "Test"), ("train", "dev")])
@pytest.mark.parametrize("inside", [["ant", "bee"], []])
def test_other_names_of_a_split_are_no_classes(halves, inside, tmp_path):
    root = image_folder(tmp_path / "root", halves, *([inside] if inside else []))
    keys = {"source": "folder", "root": str(root)}
    with refused("root", *halves, "split:"):
        build(tmp_path, **keys)
    (root / "notes").mkdir()
    with refused("root", *halves, "split:"):
        build(tmp_path, **keys)
    if inside:
        store, _ = build(tmp_path, **keys, split=[*halves])
        assert store.test.sum() == 8
    else:
        with refused(f"{halves[0]}/*"):
            build(tmp_path, **keys, split=[*halves])
