"""Images in Parquet files."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from images_on_disk import build, noise, png, write_parquet
from refusals import refused


def test_parquet_as_hugging_face_publishes_it(tmp_path):
    names = ["ant", "bee", "cow"]
    for part in range(2):
        path = tmp_path / "data" / f"train-0000{part}-of-00002.parquet"
        write_parquet(path, [k % 3 for k in range(90)], 1000 * part, names=names)
    write_parquet(tmp_path / "data" / "test-00000.parquet", [2, 1], 5000, names=names)
    store, about = build(
        tmp_path,
        source="parquet",
        train_files=f"{tmp_path}/data/train-*.parquet",
        test_files=f"{tmp_path}/data/test-*.parquet",
    )
    assert about["classes"] == names
    assert store.test.tolist() == [False] * 180 + [True] * 2
    assert store.labels.tolist() == [k % 3 for k in range(90)] * 2 + [2, 1]
    for row, seed in ((0, 0), (89, 89), (90, 1000), (181, 5001)):
        assert (store.images(np.array(row)) == np.asarray(noise(seed))).all()
    assert "parquet: 3 files" in about["provenance"]


def test_parquet_with_numbers_for_names(tmp_path):
    write_parquet(tmp_path / "x.parquet", [3, 7] * 10)
    options = {"source": "parquet", "train_files": f"{tmp_path}/x.parquet"}
    _, about = build(tmp_path, **options)
    assert (about["classes"], about["named"]) == (["3", "7"], False)
    _, about = build(tmp_path, **options, class_names=["ant", "fly"])
    assert about["classes"] == ["ant", "fly"] and "named" not in about


def test_parquet_with_plain_bytes_string_labels_and_domains(tmp_path):
    labels = ["fly", "ant"] * 40
    write_parquet(tmp_path / "x.parquet", labels, structs=False, style=["ink"] * 20 + ["oil"] * 60)
    store, about = build(
        tmp_path,
        source="parquet",
        train_files=[f"{tmp_path}/x.parquet"],
        domain_column="style",
        test_fraction=0.2,
    )
    assert about["classes"] == ["ant", "fly"]
    assert store.labels.tolist() == [1, 0] * 40
    assert Counter(store.domains) == {"ink": 20, "oil": 60}
    assert Counter(store.domains[store.test]) == {"ink": 4, "oil": 12}


def test_a_truncated_image_in_parquet_is_named_or_counted(tmp_path):
    path = tmp_path / "x.parquet"
    data = [png(k) for k in range(20)]
    data[7] = data[7][:60]
    data[9] = None
    pq.write_table(pa.table({"image": data, "label": [0, 1] * 10}), path)
    options = {"source": "parquet", "train_files": str(path)}
    with refused("x.parquet row 7: unreadable image"):
        build(tmp_path, **options)
    store, about = build(tmp_path, **options, skip_unreadable=True)
    assert (len(store), about["skipped"]) == (18, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_column": "img"}, ["'img'", "image_column", "'image'"]),
        ({"label_column": "fine_label"}, ["'fine_label'", "label_column"]),
        ({"image_column": "number"}, ["x.parquet row 0", "int"]),
        ({"label_column": "weight"}, ["x.parquet row 0: 0.5", "'weight'"]),
        ({"label_column": "gap"}, ["x.parquet row 1: None", "'gap'"]),
        ({"train_files": "none/*.parquet"}, ["train_files", "none/"]),
    ],
)
def test_a_parquet_file_that_does_not_fit(options, words, tmp_path):
    path = tmp_path / "x.parquet"
    columns = {"number": [1, 2], "weight": [0.5, 0.5], "gap": [1, None]}
    write_parquet(path, [0, 0], **columns)
    with refused(*words):
        build(tmp_path, **({"source": "parquet", "train_files": str(path)} | options))


def test_labels_without_a_name_and_damaged_files_are_named(tmp_path):
    path = tmp_path / "x.parquet"
    write_parquet(path, [0, 1, -1], names=["a", "b"])
    options = {"source": "parquet", "train_files": str(path)}
    with refused("x.parquet row 2: -1", "'label'"):
        build(tmp_path, **options)
    write_parquet(path, [0, 1] * 50)
    data = path.read_bytes()
    for damaged in (data[:500], data[:100] + b"\xff" * 300 + data[400:]):
        path.write_bytes(damaged)
        with refused("x.parquet"):
            build(tmp_path, **options)


def _parquet(tmp_path, **options):
    return build(
        tmp_path, **({"source": "parquet", "train_files": f"{tmp_path}/*.parquet"} | options)
    )


def _refused(tmp_path, *words, **options):
    """Require that a build is refused with these words, and that it leaves nothing behind."""
    before = {path.name for path in tmp_path.iterdir()}
    with refused(*words):
        _parquet(tmp_path, **options)
    assert {path.name for path in tmp_path.iterdir()} == before, "nothing half-written"


def test_patterns_that_match_nothing_or_folders_and_files_that_are_named_twice(tmp_path):
    write_parquet(tmp_path / "data/a.parquet", [0, 1] * 5)
    files = [f"{tmp_path}/data/a.parquet", f"{tmp_path}/data/b*.parquet"]
    _refused(tmp_path, "train_files", files[1], train_files=files)
    (tmp_path / "data" / "cache").mkdir()
    _refused(tmp_path, "data/cache", "train_files", train_files=f"{tmp_path}/data/*")
    _refused(tmp_path, "data: ", "train_files", train_files=f"{tmp_path}/data")
    both = {"train_files": files[0], "test_files": files[0]}  # one file for both
    _refused(tmp_path, "a.parquet", "train_files", "test_files", **both)


@pytest.mark.parametrize("names", [["bee", "ant"], ["ant", "bee", "cow"], None])
def test_files_that_disagree_on_the_classes(tmp_path, names):
    """The same number would mean another class in the second file."""
    write_parquet(tmp_path / "a.parquet", [0, 1] * 5, names=["ant", "bee"])
    write_parquet(tmp_path / "b.parquet", [0, 1] * 5, names=names)
    _refused(tmp_path, "b.parquet", "'label'", "a.parquet")


def test_files_of_which_one_has_numbers_and_the_other_text(tmp_path):
    write_parquet(tmp_path / "a.parquet", [0, 1] * 5)
    write_parquet(tmp_path / "b.parquet", ["0", "1"] * 5)
    _refused(tmp_path, "b.parquet row 0: '0'", "'label'", "a.parquet")
