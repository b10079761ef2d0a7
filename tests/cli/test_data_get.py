"""`fedloom data get`: each way of a recipe, from local servers."""

import hashlib
import inspect
import io
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from archives_on_disk import archive_of
from fedloom.cli import main
from fedloom.config.recipes import find_recipe
from fedloom.data import download
from servers import Files, serving

HEAD = "title: Letters\npapers: []\nlicence: not stated\ncitation: nobody\n"


@pytest.fixture
def letters():
    """Return a zip archive of two classes, each with a training and a test image."""
    buffer = io.BytesIO()
    Image.new("RGB", (40, 32)).save(buffer, "PNG")
    png = buffer.getvalue()
    names = [f"{half}/{name}/1.png" for half in ("train", "test") for name in "ab"]
    return archive_of("zip", {f"letters/{name}": png for name in names})


def fedloom(monkeypatch, *words):
    """Run a command in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["fedloom", *map(str, words)])
    try:
        main.main()
    except SystemExit as end:
        return end.code
    return 0


def recipe(tmp_path, text, name="letters"):
    file = tmp_path / f"{name}.yaml"
    file.write_text(HEAD + text)
    return file


def test_a_root_that_can_be_no_folder_is_one_line(tmp_path, monkeypatch, capfd):
    (tmp_path / "data").write_text("a file")
    file = recipe(
        tmp_path, "get: {torchvision: true}\nsource: torchvision\ndataset: MNIST\nroot: data\n"
    )
    assert fedloom(monkeypatch, "data", "get", file, "--root", tmp_path / "data") == 2
    error = capfd.readouterr().err
    assert error.splitlines()[-1].endswith(f"root {tmp_path}/data: File exists")
    assert "Traceback" not in error


def test_archives_come_and_are_what_the_recipe_counts(letters, tmp_path, monkeypatch, capsys):
    with serving(Files, {"/letters.zip": letters}) as server:
        digest = hashlib.sha256(letters).hexdigest()
        file = recipe(
            tmp_path,
            f"get: {{archives: [{{url: '{server.address}/letters.zip', sha256: '{digest}'}}]}}\n"
            'source: folder\nroot: "{root}/letters"\nimage_size: 32\n'
            "counts: {train: 2, test: 2, classes: 2, each_class: {train: 1, test: 1}}\n",
        )
        root = tmp_path / "data"
        assert fedloom(monkeypatch, "data", "get", file, "--root", root) == 0
        said = capsys.readouterr().out
    check = f"fedloom data check {file} --root {root}"
    assert check in said
    assert fedloom(monkeypatch, *check.split()[1:]) == 0
    assert "2 training and 2 test images of 2 classes" in capsys.readouterr().out
    (root / "letters/test/b/1.png").unlink()
    assert fedloom(monkeypatch, *check.split()[1:]) == 2


def test_steps_for_a_person_are_printed_with_the_root(tmp_path, monkeypatch, capsys):
    file = recipe(
        tmp_path,
        "get: {manual: ['Ask for the key.', 'Unpack it into {root}/letters.']}\n"
        'source: folder\nroot: "{root}/letters"\n',
    )
    assert fedloom(monkeypatch, "data", "get", file, "--root", tmp_path / "data") == 2
    said = capsys.readouterr().err
    assert f"2. Unpack it into {tmp_path}/data/letters." in said
    assert f"3. Verify the files with fedloom data check {file} --root {tmp_path}/data" in said


def test_steps_that_were_done_are_not_asked_for_again(letters, tmp_path, monkeypatch, capsys):
    file = recipe(
        tmp_path,
        "get: {manual: ['Unpack it into {root}.']}\n"
        'source: folder\nroot: "{root}/letters"\nimage_size: 32\ncounts: {train: 2, test: 2}\n',
    )
    with zipfile.ZipFile(io.BytesIO(letters)) as archive:
        archive.extractall(tmp_path / "data")
    assert fedloom(monkeypatch, "data", "get", file, "--root", tmp_path / "data") == 0
    assert "nothing differs" in capsys.readouterr().out
    file.write_text(file.read_text().replace("counts: {train: 2, test: 2}\n", ""))
    assert fedloom(monkeypatch, "data", "get", file, "--root", tmp_path / "data") == 2, "no counts"
    file.write_text(f"{file.read_text()}counts: {{train: 2, test: 2}}\n")
    (tmp_path / "data/letters/test/b/1.png").unlink()
    assert fedloom(monkeypatch, "data", "get", file, "--root", tmp_path / "data") == 2, (
        "one is lost"
    )


def test_a_data_set_of_several_gets_each(letters, tmp_path, monkeypatch):
    with serving(Files, {"/one.zip": letters, "/two.zip": letters}) as server:
        digest = hashlib.sha256(letters).hexdigest()
        parts = [
            recipe(
                tmp_path,
                f"get: {{archives: [{{url: '{server.address}/{name}.zip', sha256: '{digest}'}}]}}\n"
                'source: folder\nroot: "{root}/letters"\nimage_size: 32\n',
                name,
            )
            for name in ("one", "two")
        ]
        both = recipe(
            tmp_path,
            f"get: {{recipes: ['{parts[0]}', '{parts[1]}']}}\nsource: several\nimage_size: 32\n"
            f"parts: {{one: {{recipe: '{parts[0]}'}}, two: {{recipe: '{parts[1]}'}}}}\n"
            "counts: {train: 4, test: 4, classes: 4, domains: 2}\n",
            "both",
        )
        root = tmp_path / "data"
        assert fedloom(monkeypatch, "data", "get", both, "--root", root) == 0
        of_one = f"files_of: one\nget: {{recipes: ['{parts[0]}']}}\nsource: folder\n"
        same = recipe(tmp_path, of_one, "same")
        assert fedloom(monkeypatch, "data", "get", same, "--root", root / "one") == 0
    assert [file.name for file in (root / "one").glob("[!.]*")] == ["letters"], "in one root"
    assert (root / "one/letters/train/a/1.png").is_file()
    assert fedloom(monkeypatch, "data", "check", both, "--root", root) == 0


def test_two_processes_do_not_fetch_into_one_folder_at_a_time(tmp_path, monkeypatch):
    """Without a digest, a process would take another's half-written file for the whole file."""
    archive = "{url: 'https://127.0.0.1:9/x.zip'}"
    given = find_recipe(str(recipe(tmp_path, f"get: {{archives: [{archive}]}}\nsource: folder\n")))
    at_work = []
    most = []

    def slow(archive, folder):
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.2)
        at_work.pop()

    monkeypatch.setattr(download, "fetch_archive", slow)
    with ThreadPoolExecutor(2) as pool:
        [*pool.map(download.download_recipe, [given] * 2, [str(tmp_path / "data")] * 2)]
    assert most == [1, 1]


def test_torchvision_downloads_its_own(tmp_path, monkeypatch, capsys):
    """No server of torchvision is asked: the test replaces the download by one that fails."""
    from torchvision import datasets

    asked = []

    def download_of(self):
        asked.append(self.root)
        raise OSError("no route to host")

    monkeypatch.setattr(datasets.CIFAR10, "download", download_of)
    assert fedloom(monkeypatch, "data", "get", "cifar10", "--root", tmp_path) == 2
    assert asked == [str(tmp_path)]
    assert "OSError: no route to host" in capsys.readouterr().err


def test_the_hub_is_asked_for_what_the_recipe_names(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr("fedloom.data.download.fetch_from_hub", lambda **given: asked.update(given))
    assert fedloom(monkeypatch, "data", "get", "cinic10", "--root", tmp_path) == 0
    assert asked["root"] == tmp_path and asked["repository"] == "flwrlabs/cinic10"
    assert len(asked["revision"]) == 40
    inspect.signature(download.fetch_from_hub).bind(**asked)
