"""`fedloom predict`: which images are read, what is printed and written, and what is refused."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedloom
from command_line import invoked
from fedloom.cli.inspect.predict import find_images
from fedloom.data.store import ImageStore
from fedloom.machine.install import ROOT

RUN = "digits/few/micro_vit/fedvpt/seed0"


@pytest.fixture(autouse=True)
def photos(study, tmp_path, monkeypatch) -> Path:
    """Write three images of each of the digits 0 and 1 into folders of these names."""
    monkeypatch.chdir(study)
    store = ImageStore(Path("results/datasets/digits/images.arrow"))
    for digit in (0, 1):
        folder = tmp_path / "photos" / str(digit)
        folder.mkdir(parents=True)
        for row in np.flatnonzero(store.labels == digit)[:3]:
            pixels = store.images(np.array([row]))[0, ..., 0]
            Image.fromarray(pixels).save(folder / f"{row}.png")
    return tmp_path / "photos"


def said(capsys, *words: object) -> str:
    assert invoked("predict", RUN, *map(str, words)) == 0
    return capsys.readouterr().out


def test_predictions_are_those_of_the_model(photos, capsys):
    files = sorted(photos.glob("0/*.png"))
    rows = [line.split() for line in said(capsys, *files, "--top-k", 2).splitlines()[2:]]
    expected = fedloom.load(RUN).predict(files, 2)
    assert [row[0] for row in rows] == list(expected["image"])
    assert [row[1:3] for row in rows] == [
        [str(rank), name] for rank, name in zip(expected["rank"], expected["class"], strict=True)
    ]
    printed = [float(row[3]) for row in rows]
    assert printed == expected["probability"].round(3).tolist()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_are_written_to_a_file(photos, tmp_path, capsys, suffix):
    output = tmp_path / f"predictions{suffix}"
    assert str(output) in said(capsys, photos, "--output", output)
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}[suffix](output)
    files = [str(file) for file in sorted(photos.glob("*/*.png"))]
    expected = fedloom.load(RUN).predict(files)
    assert list(read["image"]) == files
    assert list(read["class"].astype(str)) == list(expected["class"])
    assert np.allclose(read["probability"], expected["probability"])
    assert list(read["label"].astype(str)) == ["0"] * 3 + ["1"] * 3


def test_folders_of_classes_get_their_accuracy(photos, capsys):
    # a 1 in the folder of zeros is one mistake more
    right = fedloom.load(RUN).predict(sorted(photos.glob("*/*.png")))["class"]
    labels = ["0"] * 3 + ["1"] * 3
    hits = [int(a == b) for a, b in zip(right, labels, strict=True)]
    text = said(capsys, photos).split("accuracy in %")[1]
    rows = [line.split() for line in text.splitlines()[2:]]
    assert [row[:3] for row in rows] == [
        ["0", "3", str(sum(hits[:3]))],
        ["1", "3", str(sum(hits[3:]))],
        ["all", "6", str(sum(hits))],
    ]
    assert float(rows[-1][3]) == round(100 * sum(hits) / 6, 2)


def test_folders_that_are_no_classes_are_named(photos, capsys, caplog):
    (photos / "1").rename(photos / "eleven")
    text = said(capsys, photos)
    assert re.search(r"all +3 ", text), "the images of 0 alone have a label"
    assert "have no label" in caplog.text and "eleven" in caplog.text
    (photos / "0").rename(photos / "zero")
    assert "accuracy" not in said(capsys, photos)


def test_words_are_files_folders_patterns_and_lists(photos, tmp_path):
    files = [str(file) for file in sorted(photos.glob("*/*.png"))]
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join([*files[:2], "", files[5]]))
    (photos / "notes.md").write_text("no image")
    cases = {
        (files[0],): files[:1],
        (str(photos),): files,
        (f"{photos}/0",): files[:3],
        (f"{photos}/*/*.png",): files,
        (f"{photos}/**/*.png",): files,
        (str(listed),): [*files[:2], files[5]],
        (files[0], f"{photos}/1/../0/{Path(files[0]).name}"): files[:1],
        (files[4], str(listed), files[4]): [files[4], *files[:2], files[5]],
    }
    for words, expected in cases.items():
        assert [image.path for image in find_images(words)] == expected, words


def test_a_folder_may_have_the_name_of_a_list(photos):
    folder = (photos / "0").rename(photos / "set.txt")
    assert len(find_images((str(folder),))) == 3


def test_an_unreadable_image_is_refused_or_skipped_by_name(photos, capsys, caplog):
    bad = photos / "0/bad.png"
    bad.write_text("no image")
    with pytest.raises(fedloom.FedLoomError, match=r"0/bad\.png: unreadable .*--skip-unreadable"):
        invoked("predict", RUN, str(photos))
    text = said(capsys, photos, "--skip-unreadable")
    assert "bad.png" not in text and re.search(r"all +6 ", text)
    assert f"skipped {bad}" in caplog.text and "1 of 7 images were unreadable" in caplog.text


REFUSED = {
    ("missing.png",): "missing.png: no image there",
    ("nothing*.png",): "nothing*.png: no image there",
    ("a.png", "--output", "a.xls"): "--output: must end with .csv or .parquet, got a.xls",
    ("results", "--top-k", "2"): "results: no image there",
    ("results", "--output", "no/where/a.csv"): "no/where: must be a folder that can be written to",
}


@pytest.mark.parametrize(("words", "says"), REFUSED.items())
def test_wrong_words_are_refused(words, says):
    with pytest.raises(fedloom.FedLoomError, match=re.escape(says)):
        invoked("predict", RUN, *words)


def test_more_classes_than_there_are_cannot_be_asked_for(photos):
    with pytest.raises(fedloom.FedLoomError, match=r"top_k: must be from 1 to 10, .* got 11"):
        invoked("predict", RUN, str(photos), "--top-k", "11")


def test_a_mistyped_run_is_named_before_torch_is_imported(study, photos):
    code = f"""
import sys
from fedloom.cli import main as cli
sys.argv = ["fedloom", "predict", "digits/few/micro_vit/fedvptt/seed0", {str(photos)!r}]
try:
    cli.main()
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=study,
        env={"PYTHONPATH": str(ROOT / "workflow")},
    )  # fmt: skip
    assert "did you mean 'digits/few/micro_vit/fedvpt/seed0'?" in done.stderr
    assert (done.returncode, done.stdout) == (2, "False\n")
