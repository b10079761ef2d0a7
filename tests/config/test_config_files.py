"""A config as a file of YAML: what cannot be read is one line."""

import os
import resource
import subprocess
import sys

import pytest

from default_config import default_config
from fedloom.common.errors import FedLoomError
from fedloom.config.reading import merge_configs, parse, read
from fedloom.machine.install import ROOT
from fedloom.planning.load_plan import DEFAULT_CONFIG, resolve
from refusals import refused

DEFAULT = default_config()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "must be a mapping of keys to values, got nothing"),
        (b"- a\n", "must be a mapping of keys to values, got list"),
        (b"study: {name: [}\n", "line 1, column "),
        (b"study:\n\tname: x\n", "line 2, column 1: found character"),
        ("name: \u00e9\n".encode("latin-1"), "not UTF-8"),
        (b"name: \x00\n", "unacceptable character"),
        (b"? [a]\n: b\n", "a key must be text or a whole number"),
        (b"a: !!python/object:os.system {}\n", "line 1, column 4: the tag !!python"),
        (b"study: &study {name: x, training: *study}\n", "line 1, column 35: the alias *study"),
    ],
)
def test_a_file_that_is_no_config_is_one_line(content, line, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with refused(line):
        resolve(merge_configs([(DEFAULT_CONFIG, DEFAULT), (path, read(path))]))


def test_a_folder_and_a_missing_file_are_one_line(tmp_path):
    with refused("a folder, pipe"):
        read(tmp_path)
    with refused("no.yaml: No such file or directory"):
        read(tmp_path / "no.yaml")


ENDLESS = {
    "pipe": (os.mkfifo, "a folder, pipe, socket or device"),
    "device": (lambda file: file.symlink_to("/dev/zero"), "a folder, pipe, socket or device"),
}


LOAD = """
import sys
from fedloom.planning.load_plan import load_plan
from fedloom.common.errors import FedLoomError
for file in sys.argv[1:]:
    try:
        load_plan([file])
    except FedLoomError as error:
        print("error:", error)
"""


def test_a_file_that_would_never_be_read_to_its_end(tmp_path):
    """A process with at most 8 GiB reads the files, since endless ones would fill the memory."""
    files = {name: tmp_path / f"{name}.yaml" for name in ENDLESS}
    for name, (make, _) in ENDLESS.items():
        make(files[name])
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *files.values()], capture_output=True, text=True,
        timeout=120, env={"PYTHONPATH": str(ROOT / "workflow")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33)),
    )  # fmt: skip
    said = done.stdout.splitlines()
    for line, name in zip(said, ENDLESS, strict=True):
        assert line.startswith(f"error: {files[name]}: ") and ENDLESS[name][1] in line


def test_yamls_merge_keys_work(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert read(path)["b"] == {"x": 1, "y": 3}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (BOMB, "line 6", "more than 100000 values, those behind each alias"),
        ("study: &s {name: *s}\n", "line 1", r"the alias \*s refers to itself"),
        ("study: !!python/object:os.system {}\n", "line 1", r"the tag !!python/object:os.system"),
        ("a: " + "[" * 2000, "line 1", "more than 100 mappings and lists in each other"),
        ('a: "x\\0y"\n', "", "without the character NUL"),
        ('a: "\\ud800"\n', "", "got a lone surrogate"),
        ("a: 2026-11-27\n", "", "must be text, a number, true, false or null"),
        ("[1, 2]: x\n", "", "a key must be text or a whole number"),
    ],
)
def test_yaml_that_stands_for_too_much_or_for_itself_is_one_line(text, place, problem):
    with pytest.raises(FedLoomError, match=rf"^own.yaml.*{place}.*{problem}") as error:
        parse(text, "own.yaml")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_truth_value_with_an_anchor_is_one():
    assert parse("a: &x true\nb: *x", "f") == {"a": True, "b": True}
    assert type(parse("a: &x true", "f")["a"]) is bool


@pytest.mark.filterwarnings("error")
def test_an_anchor_may_be_used_again():
    assert parse("a: &x 1\nb: &x 2\nc: *x", "f") == {"a": 1, "b": 2, "c": 2}


def test_an_alias_within_bounds_is_a_copy():
    assert parse("a: &a {x: 1}\nb: *a\n", "own.yaml") == {"a": {"x": 1}, "b": {"x": 1}}
