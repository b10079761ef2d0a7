"""Lists of image files with their classes, in the formats in which splits are published."""

import json

import numpy as np
import pytest

from fedloom.config import resolve
from fedloom.config.datasets import listing
from images_on_disk import build, dataset_spec, noise, save
from refusals import refused


def files(root, *paths):
    for seed, path in enumerate(paths):
        save(root / path, noise(seed))
    return root


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def test_text_with_a_path_and_a_number_in_a_line(tmp_path):
    """DomainNet and ImageNet-LT have such lists, in which a path may hold blanks."""
    root = files(tmp_path / "root", "ink/wine glass/1.png", "ink/zebra/1.png", "ink/zebra/2.png")
    write(root / "train.txt", "ink/wine glass/1.png 10", "ink/zebra/1.png 9")
    write(root / "test.txt", "ink/zebra/2.png 9", "")
    lists = {"source": "lists", "root": str(root), "train": "train.txt", "test": "test.txt"}
    store, about = build(tmp_path, **lists)
    assert about["classes"] == ["9", "10"], "in the order of numbers"
    assert about["named"] is False
    assert store.labels.tolist() == [1, 0, 0]
    assert store.test.tolist() == [False, False, True]
    _, about = build(tmp_path, **lists, class_names=["zebra", "glass"])
    assert about["classes"] == ["zebra", "glass"]
    store, about = build(tmp_path, **lists, class_from="folder")
    assert about["classes"] == ["wine glass", "zebra"]
    assert "named" not in about


def test_a_list_for_every_domain(tmp_path):
    root = files(tmp_path / "root", "ink/a/1.png", "ink/b/1.png", "pen/a/1.png", "pen/b/1.png")
    write(root / "ink.txt", "ink/a/1.png", "ink/b/1.png")
    write(root / "pen.txt", "pen/a/1.png 0", "pen/b/1.png 1")
    store, _ = build(
        tmp_path,
        source="lists",
        root=str(root),
        train={"Ink": "ink.txt"},
        test={"Pen": "pen.txt"},
        class_from="folder",
    )
    assert store.domains.tolist() == ["Ink", "Ink", "Pen", "Pen"]
    assert store.labels.tolist() == [0, 1, 0, 1]


def test_several_lists_of_a_split_and_a_folder_of_the_images(tmp_path):
    root = files(tmp_path / "root", "images/1.png", "images/2.png", "images/3.png")
    write(root / "a.txt", "1.png cat")
    write(root / "b.txt", "2.png ant", "3.png cat")
    lists = {"source": "lists", "root": str(root), "train": ["a.txt", "b.txt"]}
    store, about = build(tmp_path, **lists, images="images", test_fraction=0.3)
    assert (about["classes"], store.test.sum()) == (["ant", "cat"], 1)
    with refused("root/pictures", "images"):
        build(tmp_path, **lists, images="pictures")


def test_csv_with_users_and_images_by_their_names_alone(tmp_path):
    """Federated iNaturalist has such lists."""
    root = files(tmp_path / "root", "Birds/owl/ab.png", "Plants/oak/cd.png", "Plants/oak/ef.png")
    write(root / "train.csv", "user_id,image_id,class", "7,ab,1", "9,cd,0", '"9","ef",0')
    lists = {"source": "lists", "root": str(root), "train": "train.csv", "anywhere": True}
    columns = {"path_column": "image_id", "label_column": "class", "domain_column": "user_id"}
    store, about = build(tmp_path, **lists, **columns)
    assert store.domains.tolist() == ["7", "9", "9"]
    assert (about["classes"], store.labels.tolist()) == (["0", "1"], [1, 0, 0])
    with refused("train.csv, line 1", "path_column", "'image'", "user_id"):
        build(tmp_path, **lists, **columns | {"path_column": "image"})
    files(root, "Fungi/cd.png")
    with refused("oak/cd.png", "Fungi/cd.png"):
        build(tmp_path, **lists, **columns)
    write(root / "train.csv", "user_id,image_id,class", "7,xy,1")
    (root / "Fungi/cd.png").unlink()
    with refused("train.csv, line 2", "there is no file", "xy"):
        build(tmp_path, **lists, **columns)


def coop(root, **parts):
    (root / "split.json").write_text(json.dumps(parts))
    return {"source": "lists", "root": str(root), "train": "split.json", "test": "split.json"}


def test_json_as_coop_has_it(tmp_path):
    root = files(tmp_path / "root", *(f"{k}.png" for k in range(5)))
    lists = coop(
        root,
        train=[["0.png", 1, "sea lion"], ["1.png", 0, "ant"]],
        val=[["2.png", 0, "ant"]],
        test=[["3.png", 0, "ant"], ["4.png", 1, "sea lion"]],
    )
    store, about = build(tmp_path, **lists)
    assert about["classes"] == ["ant", "sea lion"]
    assert store.labels.tolist() == [1, 0, 0, 1], "images of val are left out, as in CoOp"
    assert np.flatnonzero(store.test).tolist() == [2, 3]
    lists = coop(root, train=[["0.png", 1, "sea lion"], ["1.png", 1, "seal"]], test=[])
    with refused("split.json"):
        build(tmp_path, **lists)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"train": [["0.png", 1', "JSON"),
        ('{"val": []}', "'train'"),
        ('{"train": [["0.png", "one", "ant"]]}', "'one'"),
        ("[]", "train"),
    ],
)
def test_json_that_is_broken(tmp_path, text, word):
    root = files(tmp_path / "root", "0.png")
    (root / "split.json").write_text(text)
    with refused("split.json", word):
        build(tmp_path, source="lists", root=str(root), train="split.json")


def test_lists_that_are_wrong(tmp_path):
    root = files(tmp_path / "root", "a/1.png", "a/2.png")
    lists = {"source": "lists", "root": str(root), "train": "train.txt"}
    for content, words in (
        (None, []),
        (b"", ["without images"]),
        (b"a/1.png 0\na/3.png 0\n", ["line 2", "a/3.png"]),
        (b"a/1.png 0\na/2.png\n", ["line 2", "column 1"]),
        (b"a/1.png 0\na/1.png 0\n", ["line 2", "a/1.png", "line 1"]),
        (b"a/caf\xe9.png 0\n", ["utf-8", "position 5"]),
    ):
        if content is not None:
            (root / "train.txt").write_bytes(content)
        with refused("train.txt", *words):
            build(tmp_path, **lists)
    with refused("nowhere"):
        build(tmp_path, **lists | {"root": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(
    ("again", "images"),
    [
        ("sub/../a.png", "images"),
        ("./a.png", "images"),
        ("images/a.png", {"train": "images", "test": "."}),
        ("a.png", {"train": "images", "test": "./other/../images"}),
        ("a.png", {"train": "images", "test": "link"}),
    ],
)
def test_one_file_is_not_a_training_and_a_test_image(tmp_path, again, images):
    """A file's path may have dots, or begin with another folder or with a link to its folder."""
    root = files(tmp_path / "root", "images/a.png", "images/sub/b.png", "other/c.png")
    (root / "link").symlink_to(root / "images")
    write(root / "train.txt", "a.png 0")
    write(root / "test.txt", f"{again} 0")
    lists = {"source": "lists", "root": str(root), "train": "train.txt", "test": "test.txt"}
    with refused("test.txt, line 1", "a.png", "train.txt, line 1"):
        build(tmp_path, **lists, images=images)


def test_labels_that_are_numbers_are_compared_as_integers(tmp_path):
    root = files(tmp_path / "root", "1.png", "2.png", "3.png")
    write(root / "train.txt", "1.png 07", "2.png 10")
    write(root / "test.txt", "3.png 7")
    lists = {"source": "lists", "root": str(root), "train": "train.txt", "test": "test.txt"}
    store, about = build(tmp_path, **lists)
    assert (about["classes"], store.labels.tolist()) == (["7", "10"], [0, 1, 0])


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        (("1.png 0", "2.png one"), "3.png 1", ["train.txt, line 2", "'one'", "'0'"]),
        (("1.png cat", "2.png dog"), "3.png 7", ["train.txt, line 1", "'cat'", "'7'"]),
        (("1.png 0", "2.png 1"), "3.png -1", ["test.txt, line 1", "'-1'", "hidden"]),
    ],
)
def test_labels_are_numbers_or_words_but_no_mixture(train, test, words, tmp_path):
    root = files(tmp_path / "root", "1.png", "2.png", "3.png")
    write(root / "train.txt", *train)
    write(root / "test.txt", test)
    lists = {"source": "lists", "root": str(root), "train": "train.txt", "test": "test.txt"}
    with refused(*words):
        build(tmp_path, **lists)


def test_a_folder_of_images_for_every_domain(tmp_path):
    """In Dermoscopic-FL, each site has a folder of images, and one of another size beside it."""
    paths = [f"{site}/{size}/x{k}.png" for site in "AB" for size in ("128", "256") for k in (1, 2)]
    root = files(tmp_path / "root", *paths)
    for site in "AB":
        write(root / f"{site}.csv", "image_id,label", "x1,0")
        write(root / f"{site}_more.csv", "image_id,label", "x2,1")
    lists = {
        "source": "lists",
        "root": str(root),
        "train": {"A": "A.csv", "B": ["B.csv", "B_more.csv"]},
        "test": {"A": "A_more.csv"},
        "path_column": "image_id",
        "label_column": "label",
        "anywhere": True,
    }
    store, _ = build(tmp_path, **lists, images={"A": "A/128", "B": "B/256"})
    assert store.domains.tolist() == ["A", "B", "B", "A"]
    assert (store.images(np.array([1]))[0] == np.asarray(noise(6))).all()
    with refused("images", "A", "'B'"):
        build(tmp_path, **lists, images={"A": "A/128"})


def test_a_folder_of_images_for_each_half(tmp_path):
    """MNIST-M has two such folders, with the same file names in both."""
    root = files(tmp_path / "root", "train/1.png", "test/1.png")
    write(root / "train.txt", "1.png 7")
    write(root / "test.txt", "1.png 7")
    lists = {"source": "lists", "root": str(root), "train": "train.txt", "test": "test.txt"}
    store, _ = build(tmp_path, **lists, images={"train": "train", "test": "test"})
    assert (store.images(np.array([1]))[0] == np.asarray(noise(1))).all()
    assert store.domains.tolist() == ["all", "all"]


def test_a_test_list_without_users(tmp_path, caplog):
    root = files(tmp_path / "root", "1.png", "2.png", "3.png")
    write(root / "train.csv", "user_id,image_id,class", "7,1.png,0", "8,2.png,0")
    write(root / "test.csv", "image_id,class", "3.png,0")
    columns = {"path_column": "image_id", "label_column": "class", "domain_column": "user_id"}
    lists = {"source": "lists", "root": str(root), "train": "train.csv", "test": "test.csv"}
    with caplog.at_level("INFO"):
        store, _ = build(tmp_path, **lists, **columns, min_images_per_domain=1)
    assert store.domains.tolist() == ["7", "8", ""], "it is of no domain, and stays"
    assert "2 of 2 domains have 1 training images" in caplog.text
    with refused("min_images_per_domain", "2 training images"):
        build(tmp_path, **lists, **columns, min_images_per_domain=2)
    write(root / "train.csv", "image_id,class", "1.png,0", "2.png,0")
    with refused("train.csv, line 1", "domain_column", "'user_id'"):
        build(tmp_path, **lists, **columns)


def test_the_store_is_made_again_for_other_lists(tmp_path):
    """Images that no list names may be a million files, so a plan does not look at them."""
    root = files(tmp_path / "root", "a/1.png", "a/2.png")
    write(root / "train.txt", "a/1.png 0")
    spec = dataset_spec(source="lists", root=str(root), train={"A": ["train.txt", "more.txt"]})
    before = listing(spec)
    files(root, "b/1.png")
    assert listing(spec) == before
    write(root / "train.txt", "a/2.png 0")
    other = listing(spec)
    write(root / "more.txt", "b/1.png 0")
    both = listing(spec)
    counts = [found["files"] for found in (before, other, both)]
    assert counts == [1, 1, 4], "once all lists are there, the images that they name count too"
    assert before["sha256"] != other["sha256"], "of the same size, with another content"


@pytest.mark.parametrize("within", [False, True])
def test_the_store_is_made_again_for_other_images_behind_a_list(within, tmp_path):
    """A new path or size counts, and a touched file does not, here and in a part of `several`."""
    root = files(tmp_path / "root", "a/1.png", "b/2.png")
    write(root / "train.csv", "path,label", "1,ant", "2,bee")
    columns = {"path_column": "path", "label_column": "label", "anywhere": True}
    entry = {"source": "lists", "root": str(root), "train": "train.csv", **columns}
    if within:
        entry = {"source": "several", "image_size": 8, "parts": {"mine": entry}}
    spec = dataset_spec(**entry)
    before = resolve._listing(spec)
    (root / "a/1.png").touch()
    assert resolve._listing(spec) == before
    save(root / "a/1.png", noise(5, (40, 40)))
    larger = resolve._listing(spec)
    (root / "b/2.png").rename(root / "a/2.png")
    moved = resolve._listing(spec)
    assert len({found["sha256"] for found in (before, larger, moved)}) == 3


def test_a_list_that_cannot_be_read_is_no_error_of_a_plan(tmp_path):
    root = files(tmp_path / "root", "1.png")
    write(root / "train.txt", "1.png 0", "2.png 0")
    found = listing(dataset_spec(source="lists", root=str(root), train="train.txt"))
    assert found["files"] == 1, "the list alone, as long as an image is missing"


def test_a_class_has_one_name_in_all_lists(tmp_path):
    """One list names its classes, as CoOp's lists do; the other list numbers them."""
    root = files(tmp_path / "root", "1.png", "2.png", "3.png", "4.png")
    named = {"train": [["1.png", 0, "cat"], ["2.png", 1, "dog"]], "test": [["3.png", 0, "hound"]]}
    write(root / "split.json", json.dumps(named))
    write(root / "test.txt", "3.png 0", "4.png 1")
    lists = {"source": "lists", "root": str(root), "train": "split.json"}
    _, about = build(tmp_path, **lists, test="test.txt")
    assert about["classes"] == ["cat", "dog"] and "named" not in about
    with refused("split.json, test[0]", "class 0 is called 'hound' here, 'cat' before"):
        build(tmp_path, **lists, test="split.json")


def test_a_csv_file_that_cannot_be_read_is_one_line(tmp_path):
    root = files(tmp_path / "root", "1.png")
    write(root / "train.csv", "path,label,note", f"1.png,0,{'x' * 200_000}")
    columns = {"path_column": "path", "label_column": "label"}
    with refused("train.csv", "field larger than"):
        build(tmp_path, source="lists", root=str(root), train="train.csv", **columns)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label\n1.png,", ["line 2", "'label'", "is empty"]),
        ("path,label\n1.png", ["line 2", "no column 'label'"]),
        ("path;label\n1.png;0", ["commas", "semicolons", "path;label"]),
        ("path\tlabel\n1.png\t0", ["commas", "tabs"]),
        ("file,label\n1.png,0", ["line 1", "path_column", "'path'", "file"]),
        ("path,label,label\n1.png,0,1", ["line 1", "label_column", "once"]),
        ("path,label\n1.png,red,fox", ["line 2", "2 cells", "got 3", "quotes"]),
    ],
)
def test_a_csv_file_of_another_form_is_named(text, words, tmp_path):
    root = files(tmp_path / "root", "1.png")
    (root / "train.csv").write_text(text)
    columns = {"path_column": "path", "label_column": "label"}
    with refused("train.csv", *words):
        build(tmp_path, source="lists", root=str(root), train="train.csv", **columns)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_list_of_another_encoding_is_named(encoding, tmp_path):
    root = files(tmp_path / "root", "1.png")
    mark = "" if encoding == "utf-16" else "\ufeff"
    (root / "train.csv").write_text(f"{mark}path,label\n1.png,0", encoding=encoding)
    columns = {"path_column": "path", "label_column": "label"}
    with refused("train.csv", "UTF-8", "got UTF-16"):
        build(tmp_path, source="lists", root=str(root), train="train.csv", **columns)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_list_of_another_encoding_without_a_mark_is_named(encoding, tmp_path):
    root = files(tmp_path / "root", "1.png")
    (root / "train.txt").write_text("1.png\t0", encoding=encoding)
    with refused("train.txt", "UTF-8", "UTF-16"):
        build(tmp_path, source="lists", root=str(root), train="train.txt")


@pytest.mark.parametrize(("mark", "words"), [(",", "commas"), (";", "semicolons"), ("|", "bars")])
def test_a_text_file_of_other_separators_is_named(mark, words, tmp_path):
    root = files(tmp_path / "root", "1.png")
    write(root / "train.txt", f"1.png{mark}0")
    with refused("train.txt, line 1", "tabs or blanks", f"got {words}", f"1.png{mark}0", ".csv"):
        build(tmp_path, source="lists", root=str(root), train="train.txt")


@pytest.mark.parametrize("suffix", [".txt", ".tsv"])
def test_columns_of_a_text_file_have_numbers(suffix, tmp_path):
    root = files(tmp_path / "root", "1.png", "2.png")
    write(root / f"train{suffix}", "1.png\t0", "2.png\t0")
    keys = {"source": "lists", "root": str(root), "train": f"train{suffix}"}
    assert len(build(tmp_path, **keys)[0]) == 2
    with refused(f"train{suffix}", "label_column", "number", "'label'", ".csv"):
        build(tmp_path, **keys, label_column="label")


def test_cells_of_a_csv_file_are_read_as_they_are_meant(tmp_path):
    """Blanks around a cell do not count, and a cell in quotes may hold a comma or a line's end."""
    root = files(tmp_path / "root", "1.png", "2.png", "3,4.png")
    text = 'path, label ,note\n 1.png ,cat,"two\nlines"\n2.png, cat ,\n"3,4.png","cat",,\n,,\n'
    (root / "train.CSV").write_text(text)
    columns = {"path_column": "path", "label_column": "label"}
    keys = {"source": "lists", "root": str(root), "train": "train.CSV"}
    store, about = build(tmp_path, **keys, **columns)
    assert (len(store), about["classes"]) == (3, ["cat"])
    (root / "train.CSV").write_text('path,label\n1.png,"red\nfox"\n')
    with refused("train.CSV, line 3", r"'red\nfox'"):
        build(tmp_path, **keys, **columns)


def test_labels_of_json_are_whole_numbers(tmp_path):
    root = files(tmp_path / "root", "0.png")
    for label in (1.7, True, None):
        with refused("split.json", repr(label)):
            build(tmp_path, **coop(root, train=[["0.png", label, "ant"]], test=[]))


def test_a_list_whose_name_is_too_long_is_one_line(tmp_path):
    root = files(tmp_path / "root", "1.png")
    with refused("xxx", "cannot be read", "File name too long"):
        listing(dataset_spec(source="lists", root=str(root), train="x" * 5000))
