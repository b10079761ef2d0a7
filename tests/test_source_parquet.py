"""Images in Parquet files."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedloom.common.errors import FedLoomError
from images_on_disk import build, noise, png, write_parquet


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
    data[7], data[9] = data[7][:60], None
    pq.write_table(pa.table({"image": data, "label": [0, 1] * 10}), path)
    options = {"source": "parquet", "train_files": str(path)}
    with pytest.raises(FedLoomError, match=r"x.parquet row 7: unreadable image"):
        build(tmp_path, **options)
    store, about = build(tmp_path, **options, skip_unreadable=True)
    assert (len(store), about["skipped"]) == (18, 2)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"image_column": "img"}, "no column 'img' .image_column.; did you mean 'image'"),
        ({"label_column": "fine_label"}, "no column 'fine_label' .label_column."),
        ({"image_column": "number"}, "column 'number' holds int64, not encoded images"),
        ({"label_column": "weight"}, r"x.parquet row 0: 0.5 in column 'weight' .label_column."),
        ({"label_column": "gap"}, r"x.parquet row 1: None in column 'gap' .label_column."),
        ({"train_files": "none/*.parquet"}, "train_files: no file matches 'none/"),
        ({"class_per_domain": True}, "class_per_domain needs domain_column"),
    ],
)
def test_a_parquet_file_that_does_not_fit(options, line, tmp_path):
    path = tmp_path / "x.parquet"
    columns = {"number": [1, 2], "weight": [0.5, 0.5], "gap": [1, None]}
    write_parquet(path, [0, 1], **columns)
    with pytest.raises(FedLoomError, match=line):
        build(tmp_path, **({"source": "parquet", "train_files": str(path)} | options))


def test_labels_without_a_name_and_damaged_files_are_named(tmp_path):
    path = tmp_path / "x.parquet"
    write_parquet(path, [0, 1, -1], names=["a", "b"])
    options = {"source": "parquet", "train_files": str(path)}
    with pytest.raises(FedLoomError, match=r"x.parquet row 2: -1 in column 'label'"):
        build(tmp_path, **options)
    write_parquet(path, [0, 1] * 50)
    data = path.read_bytes()
    path.write_bytes(data[:500])
    with pytest.raises(FedLoomError, match=r"x.parquet: not a whole Parquet file"):
        build(tmp_path, **options)
    path.write_bytes(data[:100] + b"\xff" * 300 + data[400:])
    with pytest.raises(FedLoomError, match=r"x.parquet"):
        build(tmp_path, **options)


def _parquet(tmp_path, **options):
    return build(
        tmp_path, **({"source": "parquet", "train_files": f"{tmp_path}/*.parquet"} | options)
    )


def _refused(tmp_path, **options):
    """The error of a build that must leave nothing behind."""
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(FedLoomError) as error:
        _parquet(tmp_path, **options)
    assert {path.name for path in tmp_path.iterdir()} == before, "nothing half-written"
    assert str(error.value).isprintable(), "one line"
    return str(error.value)


def test_a_file_without_rows(tmp_path):
    write_parquet(tmp_path / "a.parquet", [0, 1] * 5)
    write_parquet(tmp_path / "b.parquet", [0, 1])
    table = pq.read_table(tmp_path / "b.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "b.parquet")
    line = "b.parquet: no rows in it; fetch it again, or leave it out of train_files"
    assert line in _refused(tmp_path)


def test_a_list_of_patterns_of_which_one_matches_nothing(tmp_path):
    write_parquet(tmp_path / "a.parquet", [0, 1] * 5)
    files = [f"{tmp_path}/a.parquet", f"{tmp_path}/b*.parquet"]
    assert f"train_files: no file matches '{files[1]}'; correct" in _refused(
        tmp_path, train_files=files
    )


def test_a_pattern_that_matches_folders_too(tmp_path):
    write_parquet(tmp_path / "data" / "a.parquet", [0, 1] * 5)
    (tmp_path / "data" / "cache").mkdir()
    line = _refused(tmp_path, train_files=f"{tmp_path}/data/*")
    assert "data/cache: a folder, pipe or broken link, no Parquet file (train_files)" in line
    line = _refused(tmp_path, train_files=f"{tmp_path}/data")
    assert "data: a folder, pipe or broken link, no Parquet file (train_files)" in line


def test_a_file_that_is_named_twice(tmp_path):
    """Its images would be trained on and tested on."""
    write_parquet(tmp_path / "a.parquet", [0, 1] * 5)
    write_parquet(tmp_path / "b.parquet", [0, 1] * 5)
    line = _refused(tmp_path, test_files=f"{tmp_path}/b.parquet")
    assert "b.parquet: named twice, by train_files and by test_files; name it once" in line


@pytest.mark.parametrize("names", [["bee", "ant"], ["ant", "wasp"], ["ant", "bee", "cow"], None])
def test_files_that_disagree_on_the_classes(tmp_path, names):
    """The same number would mean another class in the second file."""
    write_parquet(tmp_path / "a.parquet", [0, 1] * 5, names=["ant", "bee"])
    write_parquet(tmp_path / "b.parquet", [0, 1] * 5, names=names)
    line = _refused(tmp_path)
    assert "b.parquet: other names in the metadata of column 'label' (label_column) than in" in line
    assert "a.parquet; take files of one dataset" in line


def test_files_of_which_one_has_numbers_and_the_other_text(tmp_path):
    write_parquet(tmp_path / "a.parquet", [0, 1] * 5)
    write_parquet(tmp_path / "b.parquet", ["0", "1"] * 5)
    line = _refused(tmp_path)
    assert "b.parquet row 0: '0' in column 'label' (label_column) is text, unlike in" in line


@pytest.mark.parametrize("names", [None, ["ant", "bee", "wasp"]])
def test_a_class_of_the_test_files_alone(tmp_path, names):
    write_parquet(tmp_path / "a.parquet", [0, 1] * 5, names=names)
    write_parquet(tmp_path / "t.parquet", [0, 1, 2, 2], names=names)
    line = _refused(
        tmp_path, train_files=f"{tmp_path}/a.parquet", test_files=f"{tmp_path}/t.parquet"
    )
    name = "wasp" if names else "2"
    assert f"t.parquet row 2: class '{name}' has no image in train_files (2 such rows)" in line


def test_a_class_for_every_domain(tmp_path):
    styles = ["ink"] * 10 + ["oil"] * 10
    write_parquet(tmp_path / "x.parquet", [0, 1] * 10, names=["ant", "bee"], style=styles)
    options = {"domain_column": "style", "class_per_domain": True}
    store, about = _parquet(tmp_path, **options)
    assert about["classes"] == ["ink/ant", "ink/bee", "oil/ant", "oil/bee"]
    assert store.labels.tolist() == [0, 1] * 5 + [2, 3] * 5
    _, about = _parquet(tmp_path, **options, class_names=["fly", "moth"])
    assert about["classes"] == ["ink/fly", "ink/moth", "oil/fly", "oil/moth"]
